"""The whole pipeline with its thinker on SGLang, against the recorded generations of Hugging Face."""

from __future__ import annotations

import importlib.util
import tempfile
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import pytest
import torch

from omni_python.models.qwen3_omni.config import Qwen3OmniSpeechPipelineConfig
from omni_python.proto.payload import AudioOutput, TextOutput
from tests.models import tiny_model
from tests.oracle.cases import CASES, load_case
from tests.pipeline.harness import Sink, running

pytestmark = [
    pytest.mark.skipif(importlib.util.find_spec("sglang") is None, reason="sglang is not installed"),
    pytest.mark.timeout(300),
]


@dataclass
class Heard:
    text: str
    audio: np.ndarray
    tokens: int
    ends: tuple[str, str]


def test_every_recorded_generation_is_met_beside_stages_on_torch() -> None:
    """In one process with them, which SGLang leaves its state all over; on a server, `test_server` asks the same, with
    the talker on SGLang, too."""
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        given = pool.submit(answers, str(tiny_model.checkpoint())).result(timeout=280)
    for name in CASES:
        case = load_case(name)
        assert given[name].text == case.text
        assert given[name].tokens == len(case.answer)
        assert given[name].ends == (case.answer_ends, case.speech_ends)
        assert given[name].audio.shape == case.waveform.shape
        np.testing.assert_allclose(given[name].audio, case.waveform, atol=1e-4)


def answers(checkpoint: str) -> dict[str, Heard]:
    """In a process of its own."""
    torch.set_num_threads(1)
    config = Qwen3OmniSpeechPipelineConfig(
        model_path=checkpoint, runtime_overrides={"thinker": {"engine": "sglang", "kv_tokens": 8192}}
    )
    with tempfile.TemporaryDirectory(prefix="omni-test-") as directory, running(config, Path(directory)) as pipeline:

        def submit(name: str) -> Sink:
            sink = Sink()
            pipeline.coordinator.submit(load_case(name).request(stream=True), sink)
            return sink

        given = {name: heard(submit(name)) for name in CASES}
        pipeline.wait_empty()
    return given


def heard(sink: Sink) -> Heard:
    chunks, results = sink.wait(timeout=60)
    texts = [chunk for chunk in [*chunks, *results.values()] if isinstance(chunk, TextOutput)]
    audio = [chunk for chunk in [*chunks, *results.values()] if isinstance(chunk, AudioOutput)]
    return Heard(
        "".join(chunk.text for chunk in texts),
        np.concatenate([np.asarray(chunk.samples) for chunk in audio]),
        texts[-1].num_output_tokens,
        (str(texts[-1].finish_reason), str(audio[-1].finish_reason)),
    )
