"""The whole pipeline with real sockets and shared memory: speech equal to the plain model's, alone and among others."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from omni_python.models.fish_s2_pro.config import FishS2ProPipelineConfig
from omni_python.models.fish_s2_pro.preprocess import Preprocessor
from omni_python.preprocessing.media.loader import MediaLoader
from omni_python.preprocessing.media.policy import MediaPolicy
from omni_python.proto.errors import InvalidArgument
from omni_python.proto.payload import AudioOutput
from omni_python.proto.request import AudioPart, Message, OmniRequest, TextPart
from tests.models.fish_s2_pro.test_preprocess import voice
from tests.oracle.fish_s2_pro_reference import FRAME, RATE, Reference
from tests.pipeline.harness import Pipeline, Sink, running

GREEDY = {"temperature": 0.0, "max_tokens": 18}
SAMPLED = {"max_tokens": 18, "seed": 11, "ignore_eos": True}


@dataclass(frozen=True)
class Ask:
    text: str
    sampling: dict[str, Any]
    stream: bool = True
    voice: int | None = None

    @property
    def request(self) -> OmniRequest:
        messages = [Message("user", [TextPart(self.text)])]
        if self.voice is not None:
            sound = AudioPart(samples=voice(self.voice), sample_rate=RATE)
            messages.insert(0, Message("system", [sound, TextPart("the words of it")]))
        return OmniRequest(messages, sampling=self.sampling, stream=self.stream)


@pytest.fixture(scope="module")
def pipeline(fish: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pipeline]:
    """Small windows, so that speech of a second has several."""
    overrides: dict[str, Any] = {
        "vocoder": {"first_chunk_frames": 4, "chunk_frames": 6},
        "tts_engine": {"kv_tokens": 8192},
    }
    config = FishS2ProPipelineConfig(model_path=str(fish), runtime_overrides=overrides)
    with running(config, tmp_path_factory.mktemp("s")) as pipeline:
        yield pipeline
        pipeline.wait_empty()


def answers(pipeline: Pipeline, *asks: Ask) -> list[tuple[list[int], np.ndarray]]:
    """All at once: each one's samples chunk by chunk, in numbers and joined."""
    sinks = []
    for ask in asks:
        sinks.append(Sink())
        pipeline.coordinator.submit(ask.request, sinks[-1], None)
    found = []
    for ask, sink in zip(asks, sinks, strict=True):
        chunks, results = sink.wait(60)
        outputs = [*chunks, results["vocoder"]]
        assert all(isinstance(output, AudioOutput) and output.sample_rate == RATE for output in outputs)
        pieces = [output.samples for output in outputs if isinstance(output, AudioOutput)]
        last = outputs[-1]
        assert isinstance(last, AudioOutput) and last.num_frames * FRAME == sum(map(len, pieces))
        assert ask.stream or len(pieces) == 1
        found.append(([len(piece) for piece in pieces], np.concatenate(pieces)))
    return found


@pytest.mark.parametrize("voiced", [None, 21])
def test_speech_is_the_plain_models(pipeline: Pipeline, fish: Path, reference: Reference, voiced: int | None) -> None:
    ask = Ask("Good morning!", {**GREEDY, "repetition_penalty": 1.0}, voice=voiced)
    ((pieces, samples),) = answers(pipeline, ask)
    prompt = Preprocessor(fish, MediaLoader(MediaPolicy()))(ask.request)
    expected = reference.speech(prompt.tokens.tolist(), prompt.codes, 18)
    assert expected.margin > 1e-4, "too close to call in float32; take another text"
    np.testing.assert_allclose(samples, reference.waveform(expected.codes).numpy(), atol=1e-4, rtol=0)
    assert len(pieces) > 1


def test_mixed_requests_at_once_are_those_alone(pipeline: Pipeline) -> None:
    asks = [
        Ask("One.", GREEDY),
        Ask("One.", GREEDY, stream=False),
        Ask("The second is a longer text than the first was.", SAMPLED, voice=31),
        Ask("The second is a longer text than the first was.", SAMPLED, stream=False, voice=31),
        Ask("The second is a longer text than the first was.", SAMPLED, voice=32),
        Ask("The second is a longer text than the first was.", SAMPLED),
        Ask("Ünïcode, 你好!", {**SAMPLED, "seed": 12, "temperature": 1.3}),
        Ask("One.", {**GREEDY, "max_tokens": 3}, voice=31),
    ]
    together = answers(pipeline, *asks)
    for ask, (_, samples) in zip(asks, together, strict=True):
        ((_, alone),) = answers(pipeline, ask)
        assert alone.shape == samples.shape
        np.testing.assert_allclose(samples, alone, atol=1e-4, rtol=0)
    streamed, whole = together[2][1], together[3][1]
    assert streamed.shape == whole.shape == (17 * FRAME,)
    np.testing.assert_allclose(streamed, whole, atol=1e-4, rtol=0)
    assert together[2][0] == [4 * FRAME, 6 * FRAME, 6 * FRAME, FRAME]
    # Another voice, and none, speak the same text otherwise.
    assert np.abs(together[4][1] - streamed).max() > 0.01
    assert np.abs(together[5][1] - streamed).max() > 0.01
    assert np.abs(together[5][1] - together[4][1]).max() > 0.01


def test_an_error_is_the_clients_and_ends_nothing_else(pipeline: Pipeline) -> None:
    sink = Sink()
    pipeline.coordinator.submit(OmniRequest([Message("user", [TextPart("Hi")])], voice="ethan"), sink, None)
    with pytest.raises(InvalidArgument, match="unknown voice 'ethan'; valid: default"):
        sink.wait(30)
    assert len(answers(pipeline, Ask("Hi", {**SAMPLED, "max_tokens": 6}))[0][1]) == 5 * FRAME


def test_a_client_that_leaves_frees_all(pipeline: Pipeline) -> None:
    sink = Sink()
    pipeline.coordinator.submit(Ask("Bye.", {**SAMPLED, "max_tokens": 2000}).request, sink, None)
    assert sink.events.get(timeout=30)[0] == "chunk"
    sink.cancelled = True
    pipeline.wait_empty(20)
