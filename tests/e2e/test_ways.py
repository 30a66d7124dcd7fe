"""The same answers whichever way payloads go between the stages, and however these are spread over processes."""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from omni_python.config.schema import PipelineConfig
from omni_python.models.qwen3_omni.config import (
    Qwen3OmniColocatedPipelineConfig,
    Qwen3OmniSpeechPipelineConfig,
    Qwen3OmniThinkerApartPipelineConfig,
)
from omni_python.proto.payload import AudioOutput, TextOutput
from omni_python.relay.base import RelaySettings, RelayUnavailable, open_relay
from tests.oracle.cases import CASES as ALL_CASES
from tests.oracle.cases import load_case
from tests.pipeline.harness import Pipeline, Sink, running
from tests.pipeline.test_replicas import replicated, wait_registered

CASES = ("text", "audio_image", "all")


def check_answers(pipeline: Pipeline, names: Sequence[str] = CASES) -> Counter[str]:
    """Ask all at once, streamed; returns how often each way was taken between processes."""
    sinks = []
    for name in names:
        case = load_case(name)
        sink = Sink()
        pipeline.coordinator.submit(case.request(stream=True), sink)
        sinks.append((case, sink))
    for case, sink in sinks:
        chunks, results = sink.wait(60)
        outputs = [*chunks, *results.values()]
        text = "".join(output.text for output in outputs if isinstance(output, TextOutput))
        speech = np.concatenate([output.samples for output in outputs if isinstance(output, AudioOutput)])
        assert text == case.text
        assert speech.shape == case.waveform.shape
        assert np.abs(speech - case.waveform).max(initial=0) < 1e-4
        del chunks, results, outputs
    sinks.clear()
    pipeline.wait_empty()
    return sum((Counter(process.carried) for process in pipeline.processes.values()), Counter())


@pytest.mark.parametrize("backend", [None, "nixl", "mooncake", "nccl"])
def test_every_backend_gives_the_oracles_answers(checkpoint: Path, backend: str | None) -> None:
    if backend is not None:
        try:
            open_relay(backend, RelaySettings(backend, 1 << 20), 1, lambda *_: None).close()
        except RelayUnavailable as error:
            pytest.skip(str(error))
    config = Qwen3OmniSpeechPipelineConfig(model_path=str(checkpoint))
    with (
        tempfile.TemporaryDirectory(prefix="omni-test-") as directory,
        running(config, Path(directory), relay_backend=backend) as pipeline,
    ):
        ways = check_answers(pipeline)
    assert set(ways) == {"inline", backend or "shm"}


SPREAD: dict[str, tuple[type[PipelineConfig], list[list[str]], int]] = {
    "colocated": (Qwen3OmniColocatedPipelineConfig, [], 1),
    "thinker apart": (Qwen3OmniThinkerApartPipelineConfig, [], 2),
    "thinker fused with the front": (Qwen3OmniSpeechPipelineConfig, [["mm_aggregate", "thinker"]], 2),
}


@pytest.mark.parametrize("spread", SPREAD)
def test_stages_may_share_processes_in_any_way(checkpoint: Path, spread: str) -> None:
    cls, fused, count = SPREAD[spread]
    config = cls(model_path=str(checkpoint), fused_stages=fused)
    with (
        tempfile.TemporaryDirectory(prefix="omni-test-") as directory,
        running(config, Path(directory)) as pipeline,
    ):
        assert len(pipeline.processes) == count
        check_answers(pipeline)


def test_replicas_give_the_oracles_answers(checkpoint: Path) -> None:
    config = replicated(Qwen3OmniSpeechPipelineConfig(model_path=str(checkpoint)), thinker=3, talker_ar=2, code2wav=2)
    with (
        tempfile.TemporaryDirectory(prefix="omni-test-") as directory,
        running(config, Path(directory)) as pipeline,
    ):
        wait_registered(pipeline)
        check_answers(pipeline, list(ALL_CASES))
        reached = {
            f"{name}.{stage.spec.name}": stage.accepted
            for name, process in pipeline.processes.items()
            for stage in process.stages.values()
        }
    assert [reached[f"thinker@{i}.thinker"] for i in range(3)] == [3, 3, 3]
    for stage in ("talker_ar", "code2wav"):
        assert sorted(reached[f"speech@{i}.{stage}"] for i in range(2)) == [4, 5]
