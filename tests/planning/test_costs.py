"""The file of costs: what it says of itself, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from omni_python.config.errors import ConfigError
from omni_python.planning.costs import Costs, dump_costs, load_costs
from tests.planning.pipelines import speech_costs


def written(folder: Path, change: dict[str, dict[str, Any]]) -> Path:
    """The costs as JSON with some fields of stages and devices set, by `stages.NAME` and `devices.NAME`."""
    plain = msgspec.to_builtins(speech_costs())
    for where, fields in change.items():
        group, name = where.split(".")
        plain[group].setdefault(name, {}).update(fields)
    path = folder / "costs.json"
    path.write_text(json.dumps(plain))
    return path


def test_a_file_is_read_as_it_was_written(tmp_path: Path) -> None:
    costs = speech_costs()
    path = tmp_path / "costs.yaml"
    path.write_text(dump_costs(costs))
    assert load_costs(path) == costs
    assert "cv" not in dump_costs(costs).split("thinker:")[1].split("decode:")[0].replace("steps_cv", "")
    assert load_costs(written(tmp_path, {})) == costs, "JSON is YAML"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"stages.thinker": {"fixed_ms": -1}}, "stages.thinker.fixed_ms: must be a number of at least 0, not -1"),
        ({"stages.thinker": {"fixed_ms": 0, "per_row_ms": 0}}, "what a step takes is missing"),
        (
            {"stages.thinker": {"after": ["mm_agregate"]}},
            "there is no stage 'mm_agregate'; did you mean 'mm_aggregate'?",
        ),
        ({"stages.thinker": {"after": ["decode"]}}, "stages.thinker: must stand after what it waits for: decode"),
        ({"stages.thinker": {"device": "gpu7"}}, "there is no device 'gpu7'"),
        ({"stages.thinker": {"step": 3}}, "unknown field `step`"),
        ({"stages.thinker": {"steps": "many"}}, "Expected `float`, got `str`"),
        ({"stages.thinker": {"steps": 0}}, "stages.thinker.steps: must be at least 1, not 0"),
        ({"stages.thinker": {"workers": 2}}, "is for a queue"),
        ({"stages.thinker": {"memory_gib": 90}}, "devices.gpu0: has 80 GiB, and image_encoder, thinker need 90"),
        ({"stages.decode": {"share": 1.5}}, "stages.decode.share: must be above 0 and at most 1, not 1.5"),
        ({"stages.decode": {"first_ms": 1}}, "is for a loop"),
        ({"stages.decode": {"streams_from": "mm_aggregate"}}, "must name a loop, and 'mm_aggregate' is a queue"),
        ({"devices.host": {"cores": 0}}, "devices.host.cores: must be at least 1, not 0"),
        ({"stages.new": {"device": "host"}}, "missing required field `fixed_ms`"),
    ],
)
def test_what_cannot_be_is_refused(change: dict[str, dict[str, Any]], message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        load_costs(written(tmp_path, change))
    assert message in str(caught.value)


def test_every_problem_is_told(tmp_path: Path) -> None:
    path = written(tmp_path, {"stages.thinker": {"cv": -1, "max_batch": 0}, "devices.gpu1": {"memory_gib": -1}})
    with pytest.raises(ConfigError) as caught:
        load_costs(path)
    assert len(caught.value.problems) == 3


def test_no_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read: No such file"):
        load_costs(tmp_path / "none.yaml")
    (tmp_path / "none.yaml").write_text("devices: {}\nstages: {}\n")
    with pytest.raises(ConfigError, match="stages: is empty"):
        load_costs(tmp_path / "none.yaml")
    (tmp_path / "none.yaml").write_text("a: [")
    with pytest.raises(ConfigError, match="none.yaml"):
        load_costs(tmp_path / "none.yaml")


def test_stages_are_put_elsewhere() -> None:
    """A device that the file does not have is a GPU like the others; one that is left without stages is gone."""
    one: Costs = speech_costs("gpu0", "gpu0")
    two = one.placed({"talker_ar": "gpu1", "code2wav": "gpu1"})
    assert two.devices["gpu1"] == one.devices["gpu0"]
    assert {name for name, _ in two.on("gpu1")} == {"talker_ar", "code2wav"}
    assert set(two.placed({"talker_ar": "gpu0", "code2wav": "gpu0"}).devices) == {"host", "gpu0"}
    with pytest.raises(ConfigError, match="there is no stage 'talker'; did you mean 'talker_ar'"):
        one.placed({"talker": "gpu1"})
