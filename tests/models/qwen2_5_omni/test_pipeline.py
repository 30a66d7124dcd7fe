"""The whole pipeline with real sockets and shared memory: answers and speech equal to those of Hugging Face's
`generate`, alone and among others."""

from __future__ import annotations

import io
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from omni_python.models.loading.tokenizer import load_tokenizer
from omni_python.models.qwen2_5_omni.config import Qwen25OmniPipelineConfig
from omni_python.models.qwen2_5_omni.preprocess import Preprocessor
from omni_python.models.text.detokenizer import Detokenizer, TokenBytes
from omni_python.preprocessing.audio import decode_audio
from omni_python.preprocessing.media.loader import MediaLoader
from omni_python.preprocessing.media.policy import MediaPolicy
from omni_python.proto.errors import InvalidArgument
from omni_python.proto.payload import AudioOutput, TextOutput
from omni_python.proto.request import AudioPart, ContentPart, ImagePart, Message, OmniRequest, TextPart, VideoPart
from tests.oracle.cases import MEDIA
from tests.oracle.qwen2_5_omni_reference import Reference
from tests.pipeline.harness import Pipeline, Sink, running

RATE = 24000
CODE = 480
"""Samples of a code."""
CLEAR = 5e-4
"""A greedy choice by less may fall the other way in another implementation."""
STEPS = 2
"""Of the waveform's diffusion; with Hugging Face's 10 the server is tested."""


@dataclass(frozen=True)
class Ask:
    """Greedy, but for `sampled`."""

    text: str
    voice: str = "Chelsie"
    max_tokens: int = 6
    max_codes: int = 30
    seed: int = 3
    penalty: float = 1.05
    sampled: bool = False
    stream: bool = False
    speech: bool = True
    media: list[ContentPart] = field(default_factory=list)

    @property
    def request(self) -> OmniRequest:
        talker: dict[str, Any] = {
            "repetition_penalty": self.penalty,
            "max_tokens": self.max_codes,
            "seed": self.seed,
            "ignore_eos": self.sampled,
        }
        return OmniRequest(
            [Message("user", [*self.media, TextPart(self.text)])],
            voice=self.voice,
            stream=self.stream,
            modalities=None if self.speech else ["text"],
            sampling={
                "temperature": 3.0 if self.sampled else 0.0,
                "seed": self.seed,
                "max_tokens": self.max_tokens,
                "talker": talker if self.sampled else {**talker, "temperature": 0.0},
            },
        )


@dataclass(frozen=True)
class Answer:
    text: str
    tokens: int
    pieces: list[int]
    samples: np.ndarray


@pytest.fixture(scope="module")
def pipeline(qwen25: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pipeline]:
    overrides: dict[str, Any] = {
        "thinker": {"kv_tokens": 8192},
        "talker": {"kv_tokens": 8192},
        "token2wav": {"chunk_blocks": 2, "steps": STEPS},
    }
    config = Qwen25OmniPipelineConfig(model_path=str(qwen25), runtime_overrides=overrides)
    with running(config, tmp_path_factory.mktemp("q")) as pipeline:
        yield pipeline
        pipeline.wait_empty()


def answers(pipeline: Pipeline, *asks: Ask) -> list[Answer]:
    """All at once."""
    sinks = []
    for ask in asks:
        sinks.append(Sink())
        pipeline.coordinator.submit(ask.request, sinks[-1], None)
    found = []
    for ask, sink in zip(asks, sinks, strict=True):
        chunks, results = sink.wait(60)
        assert set(results) == ({"decode", "token2wav"} if ask.speech else {"decode"})
        outputs = [*chunks, *results.values()]
        text = "".join(output.text for output in outputs if isinstance(output, TextOutput))
        heard = [output for output in outputs if isinstance(output, AudioOutput)]
        pieces = [output.samples for output in heard]
        assert all(output.sample_rate == RATE for output in heard)
        assert ask.stream or len(pieces) == ask.speech
        if heard:
            assert heard[-1].num_frames * CODE == sum(map(len, pieces))
        assert isinstance(results["decode"], TextOutput)
        tokens = results["decode"].num_output_tokens
        found.append(
            Answer(text, tokens, [len(piece) for piece in pieces], np.concatenate([*pieces, np.zeros(0, np.float32)]))
        )
    return found


def prompt(path: Path, ask: Ask) -> torch.Tensor:
    return Preprocessor(path, MediaLoader(MediaPolicy()))(ask.request).input_ids


def read_by_hugging_face(path: Path, clips: list[np.ndarray], images: list[np.ndarray]) -> dict[str, Any]:
    """As its Qwen2_5OmniProcessor reads media, which needs torchvision and so cannot be made here itself. Images are of
    sizes that are not changed, for its other image processor resizes otherwise."""
    from transformers import WhisperFeatureExtractor
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

    read: dict[str, Any] = {}
    if clips:
        heard = WhisperFeatureExtractor.from_pretrained(path)(
            clips, sampling_rate=16000, padding="max_length", return_attention_mask=True, return_tensors="pt"
        )
        read |= {"input_features": heard["input_features"], "feature_attention_mask": heard["attention_mask"]}
    if images:
        read |= Qwen2VLImageProcessorPil.from_pretrained(path)(images=images, return_tensors="pt")
    return read


def text_of(path: Path, tokens: list[int]) -> str:
    detokenizer = Detokenizer(TokenBytes(load_tokenizer(path)))
    return "".join(detokenizer.push(token) for token in tokens) + detokenizer.finish()


@pytest.mark.parametrize(
    "ask",
    [
        Ask("Hello!"),
        Ask("What time is it?", voice="ethan", seed=11, penalty=1.0),
        Ask("Tell me a story about a fox.", max_tokens=24, max_codes=60),
    ],
    ids=["short", "other_voice", "long"],
)
def test_an_answer_is_hugging_faces(pipeline: Pipeline, qwen25: Path, reference: Reference, ask: Ask) -> None:
    answer, waveform = assert_hugging_faces(pipeline, qwen25, reference, ask, {})
    assert len(answer.samples) % CODE == 0
    assert 0.01 < np.abs(waveform).max() < 1, "clipping hides differences"


def assert_hugging_faces(
    pipeline: Pipeline, path: Path, reference: Reference, ask: Ask, read: dict[str, Any]
) -> tuple[Answer, np.ndarray]:
    """`read` are the media as Hugging Face's processor gives them."""
    sizes = (ask.max_tokens, ask.max_codes, ask.seed, ask.penalty)
    voice = ask.voice.capitalize()
    expected = reference(prompt(path, ask), voice, *sizes, token2wav_num_steps=STEPS, **read)
    assert expected.margin > CLEAR, "too close to call in float32; take another question"
    (answer,) = answers(pipeline, ask)
    assert (answer.text, answer.tokens) == (text_of(path, expected.answer), len(expected.answer))
    assert len(expected.codes) * CODE == len(answer.samples)
    np.testing.assert_allclose(answer.samples, expected.waveform, atol=1e-4, rtol=0)
    return answer, expected.waveform


@pytest.mark.parametrize(("sounds", "pictures"), [(2, 0), (0, 2), (1, 1)], ids=["audio", "images", "both"])
def test_media_are_understood_as_by_hugging_face(
    pipeline: Pipeline, qwen25: Path, reference: Reference, sounds: int, pictures: int
) -> None:
    random = np.random.default_rng(5 + sounds)
    clips = [random.normal(0, 0.1, 16000 + 3777 * index).astype(np.float32) for index in range(sounds)]
    images = [random.integers(0, 256, (84 + 56 * index, 112, 3), np.uint8) for index in range(pictures)]
    media: list[ContentPart] = [AudioPart(samples=clip, sample_rate=16000) for clip in clips]
    media[1:1] = [ImagePart(png(image)) for image in images]
    ask = Ask("What is it?", max_tokens=8, media=media)
    read = read_by_hugging_face(qwen25, clips, images)
    answer, _ = assert_hugging_faces(pipeline, qwen25, reference, ask, read)
    (deaf,) = answers(pipeline, Ask("What is it?", max_tokens=8))
    assert deaf.text != answer.text


@pytest.mark.parametrize(("file", "heard"), [("silent.mp4", False), ("talking.mp4", True)])
def test_videos_are_understood_as_by_hugging_face(
    pipeline: Pipeline, qwen25: Path, reference: Reference, file: str, heard: bool
) -> None:
    """Patches of frames are ours on both sides: Hugging Face's need torchvision."""
    video = VideoPart(np.frombuffer((MEDIA / file).read_bytes(), np.uint8))
    ask = Ask("What happens?", max_tokens=8, media=[video])
    seen = Preprocessor(qwen25, MediaLoader(MediaPolicy()))(ask.request).features
    assert seen is not None
    read: dict[str, Any] = {"pixel_values_videos": seen.video, "video_grid_thw": seen.video_grids}
    read |= {"video_second_per_grid": torch.tensor([1.0]), "use_audio_in_video": heard}
    if heard:
        read |= read_by_hugging_face(qwen25, [decode_audio(video.data, 16000)], [])
    assert_hugging_faces(pipeline, qwen25, reference, ask, read)


def png(image: np.ndarray) -> np.ndarray:
    file = io.BytesIO()
    Image.fromarray(image).save(file, "png")
    return np.frombuffer(file.getvalue(), np.uint8)


def test_mixed_requests_at_once_are_those_alone(pipeline: Pipeline) -> None:
    fox = "Tell me a story about a fox."
    random = np.random.default_rng(1)
    sound = AudioPart(samples=random.normal(0, 0.1, 20000).astype(np.float32), sample_rate=24000)
    picture = random.integers(0, 256, (100, 80, 3), np.uint8)
    asks = [
        Ask("Hello!"),
        Ask("Hello!", seed=4),
        Ask("Hello!", voice="ethan"),
        Ask(fox, sampled=True, max_codes=64, stream=True),
        Ask(fox, sampled=True, max_codes=64),
        Ask(fox, sampled=True, seed=12, max_codes=20, stream=True, media=[sound, ImagePart(png(picture))]),
        Ask("What time is it?", speech=False, stream=True),
        Ask("One two three", max_tokens=1),
    ]
    together = answers(pipeline, *asks)
    for ask, answer in zip(asks, together, strict=True):
        (alone,) = answers(pipeline, ask)
        assert alone.text == answer.text
        assert alone.samples.shape == answer.samples.shape
        np.testing.assert_allclose(answer.samples, alone.samples, atol=1e-4, rtol=0)
    plain, reseeded, other, streamed, whole, again, silent, cut = together
    # The noise is the seed's alone, and the voice is heard.
    assert plain.text == reseeded.text == other.text
    assert np.abs(plain.samples - reseeded.samples).max() > 1e-3
    assert len(plain.samples) != len(other.samples) or np.abs(plain.samples - other.samples).max() > 1e-3
    # A streamed answer has as many samples, held back by the crossfade, and nearly the same ones.
    block = 12 * CODE
    assert streamed.text == whole.text != again.text
    assert streamed.pieces == [block - 240, 2 * block, 2 * block, 3 * CODE + 240]
    assert whole.samples.shape == streamed.samples.shape == (63 * CODE,)
    assert np.abs(streamed.samples - whole.samples).max() < 0.1 * np.abs(whole.samples).max()
    assert silent.text and not len(silent.samples)
    assert not len(cut.samples), "the thinker has read no token of the answer, so there is nothing to speak"


def test_errors_are_the_clients_and_end_nothing_else(pipeline: Pipeline) -> None:
    for ask, message in (
        (Ask("Hi", voice="vivian"), "unknown voice 'vivian'; valid: chelsie, ethan"),
        (Ask("<|AUDIO|>"), "special token <|AUDIO|>"),
        (Ask("What is it?", media=[VideoPart(np.zeros(9, np.uint8))]), "unreadable video"),
        (Ask("What is it?", media=[ImagePart(np.zeros(9, np.uint8))]), "unreadable image file"),
    ):
        sink = Sink()
        pipeline.coordinator.submit(ask.request, sink, None)
        with pytest.raises(InvalidArgument, match=message.replace("|", r"\|")):
            sink.wait(30)
    assert answers(pipeline, Ask("Hello!"))[0].text


def test_a_client_that_leaves_frees_all(pipeline: Pipeline) -> None:
    sink = Sink()
    ask = Ask("Bye.", sampled=True, stream=True, max_tokens=40, max_codes=2000)
    pipeline.coordinator.submit(ask.request, sink, None)
    assert sink.events.get(timeout=30)[0] == "chunk"
    sink.cancelled = True
    pipeline.wait_empty(20)
