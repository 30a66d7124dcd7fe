"""Streamed speech is the non-streamed speech, sample for sample, whatever the sizes of the chunks."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from omni_python.models.qwen3_omni.config import Qwen3OmniSpeechPipelineConfig
from omni_python.proto.payload import AudioOutput
from omni_python.proto.request import Message, OmniRequest, TextPart
from tests.pipeline.harness import Pipeline, Sink, running

SAMPLES_PER_FRAME = 1920
TRIMMED = 555
"""Samples that the transposed convolutions of one whole decode trim off: 480 + 60 + 12 + 3."""


@pytest.fixture(scope="module", params=[1, 4, 10, 25], ids=lambda frames: f"chunks_of_{frames}")
def pipeline(request: pytest.FixtureRequest, checkpoint: Path) -> Iterator[Pipeline]:
    """All stages in this process; only Triton is not there, so that every chunk size needs no server of its own."""
    overrides = {"code2wav": {"chunk_frames": request.param}}
    config = Qwen3OmniSpeechPipelineConfig(model_path=str(checkpoint), runtime_overrides=overrides)
    with tempfile.TemporaryDirectory(prefix="omni-test-") as directory, running(config, Path(directory)) as pipeline:
        yield pipeline


def speak(pipeline: Pipeline, frames: int, stream: bool, **talker: Any) -> tuple[list[np.ndarray], np.ndarray]:
    """The chunks as they came, and the whole speech."""
    talker = {"max_tokens": frames + 1, "ignore_eos": True, **talker}
    sampling = {"max_tokens": 6, "ignore_eos": True, "talker": talker}
    sink = Sink()
    message = Message("user", [TextPart("Say something long.")])
    pipeline.coordinator.submit(OmniRequest([message], sampling=sampling, stream=stream), sink)
    chunks, results = sink.wait(60)
    chunks.append(results["code2wav"])
    pieces = [chunk.samples.copy() for chunk in chunks if isinstance(chunk, AudioOutput)]  # frees the relay's slots
    assert all(chunk.sample_rate == 24_000 for chunk in chunks if isinstance(chunk, AudioOutput))
    return pieces, np.concatenate(pieces)


@pytest.mark.parametrize("frames", [0, 1, 3, 35])
def test_streamed_speech_equals_the_whole(pipeline: Pipeline, frames: int) -> None:
    for sampling in ({"temperature": 0.0}, {"temperature": 0.9, "seed": 17}):
        whole_pieces, whole = speak(pipeline, frames, stream=False, **sampling)
        pieces, streamed = speak(pipeline, frames, stream=True, **sampling)
        assert len(whole_pieces) == 1
        assert len(pieces) > frames // 25
        assert len(whole) == (frames * SAMPLES_PER_FRAME - TRIMMED if frames else 0)
        assert streamed.shape == whole.shape
        assert np.abs(streamed - whole).max(initial=0) < 1e-4
        if frames:
            assert np.abs(whole).max() > 1e-3, "silence would equal silence"
    pipeline.wait_empty()
