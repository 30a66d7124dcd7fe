"""The whole pipeline with real sockets and shared memory: text and speech equal to the plain model's, alone and among
others."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from omni_python.models.ming_omni.config import MingOmniTextPipelineConfig
from omni_python.models.ming_omni.segmenter import TextSplitter
from omni_python.proto.errors import InvalidArgument, Unsupported
from omni_python.proto.payload import AudioOutput, Payload, TextOutput
from omni_python.proto.request import AudioPart, ContentPart, Message, OmniRequest, TextPart
from tests.oracle.ming_omni_reference import Reference
from tests.pipeline.harness import Pipeline, Sink, running

RATE = 44100
STEP = 4 * 4 * 882
"""Samples of one step: 4 latents of 4 frames of 882."""


@dataclass(frozen=True)
class Ask:
    text: str
    tokens: int = 24
    talker: int = 12
    seed: int = 1
    temperature: float = 0.0
    ignore_eos: bool = False
    stream: bool = True
    modalities: tuple[str, ...] | None = None
    thinker: float = 0.0
    heard: int = 0
    voice: str | None = "default"
    parts: tuple[ContentPart, ...] = ()

    @property
    def request(self) -> OmniRequest:
        talker = {"max_tokens": self.talker, "seed": self.seed, "temperature": self.temperature}
        sampling: dict[str, Any] = {"max_tokens": self.tokens, "temperature": self.thinker, "seed": self.seed}
        sampling["talker"] = {**talker, "ignore_eos": self.ignore_eos}
        modalities = None if self.modalities is None else list(self.modalities)
        content: list[ContentPart] = [*self.parts, TextPart(self.text)]
        if self.heard:
            content.insert(0, AudioPart(samples=sound(self.heard), sample_rate=16000))
        return OmniRequest([Message("user", content)], modalities, self.voice, sampling, self.stream)


def sound(samples: int) -> np.ndarray:
    """Something that sounds otherwise at every time."""
    times = np.arange(samples) / 16000
    noise = np.random.default_rng(samples).standard_normal(samples)
    return (0.2 * np.sin(2000 * times + 900 * times**2) + 0.05 * noise).astype(np.float32)


@dataclass(frozen=True)
class Answer:
    text: str
    samples: np.ndarray
    chunks: list[int]
    end: TextOutput


def answers(pipeline: Pipeline, *asks: Ask) -> list[Answer]:
    """All at once."""
    sinks = [Sink() for _ in asks]
    for ask, sink in zip(asks, sinks, strict=True):
        pipeline.coordinator.submit(ask.request, sink, None)
    found = []
    for ask, sink in zip(asks, sinks, strict=True):
        chunks, results = sink.wait(60)
        outputs: list[Payload] = [*chunks, *results.values()]
        sounds = [output for output in outputs if isinstance(output, AudioOutput)]
        texts = [output for output in outputs if isinstance(output, TextOutput)]
        assert all(sound.sample_rate == RATE for sound in sounds)
        assert ask.stream or not chunks
        samples = np.concatenate([sound.samples for sound in sounds]) if sounds else np.zeros(0, np.float32)
        end = results["decode"]
        assert isinstance(end, TextOutput)
        lengths = [len(sound.samples) for sound in sounds]
        found.append(Answer("".join(text.text for text in texts), samples, lengths, end))
    return found


def pieces(text: str) -> list[str]:
    splitter = TextSplitter()
    return [*splitter.push(text), *splitter.finish()]


CASES = [
    (Ask("How are you?", talker=16, seed=2), 1, "stop"),
    (Ask("Draw.", tokens=40, talker=7, seed=5, temperature=0.8), 3, "length"),
    (Ask("How are you?", talker=7, seed=3, voice=None), 1, "stop"),
]


@pytest.mark.parametrize(("ask", "count", "reason"), CASES, ids=["short", "long", "voice"])
def test_answers_are_the_plain_models(
    pipeline: Pipeline, ming_reference: Reference, ask: Ask, count: int, reason: str
) -> None:
    """One piece that ends by itself; three, the flow of which draws noise in its steps too; and the voice that speaks
    where none is asked for."""
    (answer,) = answers(pipeline, ask)
    expected = ming_reference.answer(ming_reference.prompt(ask.text), ask.tokens)
    assert expected.margin > 1e-3, "too close to call in float32; take another text"
    assert answer.text == ming_reference.text(expected.tokens)
    assert (answer.end.num_output_tokens, answer.end.finish_reason) == (len(expected.tokens), reason)
    words, voice = ("", None) if ask.voice else ming_reference.speech.voice("DB30")
    patches = 0 if voice is None else len(voice) // 4
    prompts = [ming_reference.speech.prompt(piece, words, patches) for piece in pieces(answer.text)]
    assert len(prompts) == count
    spoken = ming_reference.speech.speak(prompts, ask.seed, ask.talker, ask.temperature, voice=voice)
    assert spoken.margin > 1e-3, "too close to call in float32; take another seed"
    wave = ming_reference.speech.waveform(spoken.pieces).numpy()
    assert answer.samples.shape == wave.shape
    np.testing.assert_allclose(answer.samples, wave, atol=1e-4, rtol=0)
    assert np.abs(wave).max() > 0.05 and len(answer.chunks) > 2


def test_mixed_requests_at_once_are_those_alone(pipeline: Pipeline) -> None:
    spoken = Ask("Draw.", tokens=40, talker=5, seed=3, ignore_eos=True)
    asks = [
        spoken,
        replace(spoken, stream=False),
        replace(spoken, seed=4),
        replace(spoken, temperature=0.5),
        Ask("How are you?", voice="DB30"),
        Ask("How are you?", modalities=("text",), stream=False),
        Ask("Ünïcode, 你好!", thinker=1.0, seed=9, talker=8),
        Ask("What is it?", tokens=20, talker=3, heard=8000),
    ]
    together = answers(pipeline, *asks)
    for ask, answer in zip(asks, together, strict=True):
        (alone,) = answers(pipeline, ask)
        assert answer.text == alone.text and answer.samples.shape == alone.samples.shape
        np.testing.assert_allclose(answer.samples, alone.samples, atol=1e-4, rtol=0)
    streamed, whole, reseeded, warmer, _, silent, *_ = together
    assert len(streamed.samples) == 3 * 5 * STEP
    np.testing.assert_allclose(streamed.samples, whole.samples, atol=1e-5, rtol=0)
    assert len(whole.chunks) == 1 and streamed.chunks[0] == 3 * STEP // 4
    assert not len(silent.samples)
    for other in (reseeded, warmer):
        assert other.text == streamed.text
        assert np.abs(other.samples - streamed.samples).max() > 0.01


def test_a_question_about_a_sound_is_the_plain_models(pipeline: Pipeline, ming_reference: Reference) -> None:
    """Alone, and beside a longer sound and a text: each hears its own."""
    ask = Ask("What is it?", tokens=16, modalities=("text",), heard=9000)
    others = [replace(ask, heard=15000), replace(ask, heard=0)]
    (alone,) = answers(pipeline, ask)
    together = answers(pipeline, ask, *others)
    heard = ming_reference.heard(torch.from_numpy(sound(9000)))
    prompt = ming_reference.prompt(ming_reference.sound(heard) + ask.text, sounds=[heard])
    expected = ming_reference.answer(prompt, ask.tokens)
    assert expected.margin > 1e-3, "too close to call in float32; take another sound"
    assert alone.text == together[0].text == ming_reference.text(expected.tokens)
    assert len({answer.text for answer in together}) == 3


def test_an_answer_without_a_word_is_silent(pipeline: Pipeline) -> None:
    """The first token of this answer is no letter and no digit."""
    (answer,) = answers(pipeline, Ask("Say something.", tokens=1))
    assert not pieces(answer.text)
    assert not len(answer.samples) and len(answer.chunks) == 1


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"modalities": ["image"]}, Unsupported, "image_generation, .* does not exist yet; valid: text, audio"),
        ({"modalities": ["video"]}, InvalidArgument, "unknown modality 'video'; valid: text, audio"),
        ({"voice": "DB31"}, InvalidArgument, "unknown voice 'DB31'; valid: db30, default"),
        ({"sampling": {"talker": {"top_p": 0.5}}}, InvalidArgument, "'top_p' means nothing to this talker.*seed"),
        ({"sampling": {"talker": {"max_tokens": 10**6}}}, InvalidArgument, "ask for max_tokens of at most"),
        (
            {"messages": [Message("user", [AudioPart(samples=np.zeros(9, np.float32), sample_rate=16000)])]},
            InvalidArgument,
            r"messages\[0\].content\[0\]: audio of 9 samples at 16000 Hz is too short; 400 are needed",
        ),
        (
            {"messages": [Message("user", [TextPart("a<|role_end|>b")])]},
            InvalidArgument,
            "must not contain the control token <|role_end|>",
        ),
    ],
    ids=["image", "modality", "voice", "talker", "length", "sound", "control"],
)
def test_what_is_not_there_is_refused_by_name(
    pipeline: Pipeline, change: dict[str, Any], error: type[Exception], message: str
) -> None:
    request = Ask("Hello", tokens=4).request
    for name, value in change.items():
        setattr(request, name, value)
    sink = Sink()
    pipeline.coordinator.submit(request, sink, None)
    with pytest.raises(error, match=message.replace("|", "\\|")):
        sink.wait(30)


def test_a_client_that_leaves_frees_all(pipeline: Pipeline) -> None:
    sink = Sink()
    pipeline.coordinator.submit(Ask("Bye.", tokens=300, talker=200, ignore_eos=True).request, sink, None)
    while not isinstance(sink.events.get(timeout=30)[1], AudioOutput):
        pass
    sink.cancelled = True
    pipeline.wait_empty(20)


def test_the_text_pipeline_gives_the_same_text_and_no_speech(
    ming: Path, pipeline: Pipeline, tmp_path_factory: pytest.TempPathFactory
) -> None:
    ask = Ask("Draw.", tokens=12, modalities=("text",), voice=None)
    (spoken,) = answers(pipeline, ask)
    config = MingOmniTextPipelineConfig(model_path=str(ming), runtime_overrides={"thinker": {"kv_tokens": 1024}})
    with running(config, tmp_path_factory.mktemp("t")) as text:
        (answer,) = answers(text, ask)
        assert answer.text == spoken.text and not len(answer.samples)
        with pytest.raises(InvalidArgument, match="this pipeline cannot speak"):
            answers(text, replace(ask, modalities=("audio",)))
        text.wait_empty()
