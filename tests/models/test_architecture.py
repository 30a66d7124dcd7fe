"""config.json as attributes, against transformers' own configuration class."""

from __future__ import annotations

import copy
import json
import random
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from transformers import Qwen3OmniMoeConfig

from omni_python.models.qwen3_omni.architecture import complete
from tests.models.tiny_model import checkpoint

PUBLISHED = Path(__file__).parent / "published_config.json"


def differences(own: SimpleNamespace, theirs: Any, where: str = "") -> list[str]:
    found = []
    for name, value in vars(own).items():
        expected = getattr(theirs, name, None)
        if isinstance(value, SimpleNamespace):
            found += differences(value, expected, f"{where}{name}.")
        elif name not in ("model_type", "dtype", "architectures") and plain(value) != plain(
            getattr(theirs, name, None)
        ):
            found.append(f"{where}{name}: {value} instead of {getattr(theirs, name, None)}")
    return found


def plain(value: Any) -> Any:
    """Tuples as lists; a flag that is not set is off."""
    return list(value) if isinstance(value, tuple) else value or 0


def thinned(section: dict[str, Any], rng: random.Random) -> dict[str, Any]:
    """Half of the keys at random; tables that are no sections stay whole."""
    return {
        key: thinned(value, rng) if key.endswith("_config") else value
        for key, value in section.items()
        if key.endswith("_config") or rng.random() < 0.5
    }


# Names that are the same in each of pytest's processes.
@pytest.mark.parametrize("seed", [None, *random.sample(range(1000), 5)], ids=["whole", *"abcde"])
def test_what_is_left_out_has_the_reference_value(seed: int | None) -> None:
    given = json.loads(PUBLISHED.read_text("utf-8"))
    given = given if seed is None else thinned(given, random.Random(seed))
    reference = Qwen3OmniMoeConfig.from_dict(copy.deepcopy(given))
    assert not differences(complete(given), reference), seed


def test_an_empty_config_is_the_reference_default() -> None:
    assert not differences(complete({}), Qwen3OmniMoeConfig.from_dict({}))


def test_rope_of_older_checkpoints_is_found() -> None:
    scaling = {"mrope_section": [24, 20, 20], "interleaved": True, "mrope_interleaved": True, "type": "default"}
    text = {"rope_theta": 500_000, "rope_scaling": {**scaling, "rope_type": "default"}}
    given = {"thinker_config": {"text_config": text}, "talker_config": {"text_config": {"rope_theta": 7}}}
    own, theirs = complete(given), Qwen3OmniMoeConfig.from_dict(copy.deepcopy(given))
    for part in ("thinker_config", "talker_config"):
        rope = getattr(own, part).text_config.rope_parameters
        expected = getattr(theirs, part).text_config.rope_parameters
        assert {key: rope[key] for key in expected} == expected


@pytest.mark.parametrize("process", ["front", "thinker", "speech"])
def test_no_process_waits_for_transformers_or_the_compiler(process: str) -> None:
    """Each takes seconds to import, which a dead stage's return to service would take longer."""
    program = (
        "import sys\n"
        "from pathlib import Path\n"
        "from omni_python.models.qwen3_omni.config import Qwen3OmniSpeechPipelineConfig\n"
        "from omni_python.pipeline.build import build_stages\n"
        "config = Qwen3OmniSpeechPipelineConfig(model_path=sys.argv[1])\n"
        "assert build_stages(config, sys.argv[2], Path())\n"
        "heavy = {'transformers', 'torch._dynamo', 'torch._inductor', 'sglang', 'scipy', 'pandas', 'matplotlib'}\n"
        "assert not heavy & set(sys.modules), heavy & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", program, str(checkpoint()), process], check=True)
