"""With OMNI_CHECK_READ_ONLY a stage that writes to what it was given by reference is found out."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

from omni_python.config.schema import PipelineConfig, StageConfig
from omni_python.pipeline.read_only import VARIABLE
from omni_python.proto.errors import OmniError
from omni_python.proto.payload import TextOutput
from tests.pipeline.harness import Pipeline, running

_HERE = "tests.pipeline.writers"


def fan_out(how: str, source: str = "create_source") -> PipelineConfig:
    """Stages of one process: `a` hands one payload to `good` and to `bad`."""
    return PipelineConfig(
        name="shared",
        model_path="none",
        stages=[
            StageConfig(name="a", process="p", factory=f"{_HERE}.{source}", next=["good", "bad"]),
            *(
                StageConfig(
                    name=name, process="p", factory=f"{_HERE}.create_user", factory_args={"how": does}, terminal=True
                )
                for name, does in (("good", "read"), ("bad", how))
            ),
        ],
    )


def ask(pipeline: Pipeline) -> dict[str, str]:
    _, results = pipeline.submit()[1].wait()
    return {stage: result.text for stage, result in results.items() if isinstance(result, TextOutput)}


@pytest.mark.parametrize("how", ["tensor", "same value", "memory", "array", "list"])
def test_a_stage_that_writes_to_its_input_is_named(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "1")
    with tempfile.TemporaryDirectory(prefix="omni-test-") as path, running(fan_out(how), Path(path)) as pipeline:
        with pytest.raises(OmniError, match="stage bad wrote to the Shared .* read-only"):
            ask(pipeline)
        pipeline.wait_empty()


def test_a_stage_that_writes_to_what_it_has_handed_over_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "1")
    config = fan_out("wait", "create_recycler")
    with tempfile.TemporaryDirectory(prefix="omni-test-") as path, running(config, Path(path)) as pipeline:
        with pytest.raises(OmniError, match="stage a wrote to the Shared that stage a handed"):
            ask(pipeline)
        pipeline.wait_empty()


@pytest.mark.parametrize(("value", "how"), [("1", "read"), ("", "tensor")])
def test_who_only_reads_is_left_alone_and_so_is_everybody_without_the_check(
    value: str, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, value)
    with tempfile.TemporaryDirectory(prefix="omni-test-") as path, running(fan_out(how), Path(path)) as pipeline:
        for _ in range(3):
            answers = ask(pipeline)
            assert answers["bad"] == ("3.0" if how == "read" else "done")
        check = pipeline.processes["p"]._observer._read_only
        assert check is None or not check._lent
        pipeline.wait_empty()
