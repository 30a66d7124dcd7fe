"""Bounds of a request and of the speech made of it."""

from __future__ import annotations

import io
import random

import numpy as np
import pytest
from PIL import Image

from omni_python.models.qwen3_omni.limits import RequestLimits, SpeechGuard
from omni_python.models.qwen3_omni.preprocess import Preprocessor
from omni_python.proto.errors import InvalidArgument
from omni_python.proto.request import AudioPart, ContentPart, ImagePart, Message, OmniRequest, TextPart, VideoPart
from tests.models.tiny_model import checkpoint
from tests.oracle.cases import MEDIA


def ask(limits: RequestLimits, *parts: ContentPart) -> None:
    request = OmniRequest([Message("user", [*parts, TextPart("What is this?")])], modalities=["text"])
    Preprocessor(checkpoint(), speech=True, limits=limits)(request)


def sound(seconds: float) -> AudioPart:
    return AudioPart(samples=np.zeros(int(16000 * seconds), np.float32), sample_rate=16000)


def picture(width: int, height: int) -> ImagePart:
    file = io.BytesIO()
    Image.new("RGB", (width, height), "red").save(file, "PNG")
    return ImagePart(np.frombuffer(file.getvalue(), np.uint8))


def test_sound_is_bounded_over_all_clips() -> None:
    ask(RequestLimits(audio_seconds=2.0), sound(1.0), sound(1.0))
    with pytest.raises(InvalidArgument, match=r"2\.5 s of sound in the request; at most 2 s are accepted"):
        ask(RequestLimits(audio_seconds=2.0), sound(1.0), sound(1.5))
    with pytest.raises(InvalidArgument, match="longer than 2 s"):
        ask(RequestLimits(audio_seconds=2.0), sound(2.1))


def test_pixels_are_bounded_over_all_images() -> None:
    ask(RequestLimits(image_pixels=20_000), picture(100, 100), picture(100, 100))
    with pytest.raises(InvalidArgument, match="20100 pixels of images in the request; at most 20000"):
        ask(RequestLimits(image_pixels=20_000), picture(100, 100), picture(100, 101))
    with pytest.raises(InvalidArgument, match="200 x 200 pixels has more than 20000"):
        ask(RequestLimits(image_pixels=20_000), picture(200, 200))


def test_frames_are_bounded_over_all_videos() -> None:
    clip = VideoPart(np.fromfile(next(MEDIA.glob("*.mp4")), np.uint8))
    with pytest.raises(InvalidArgument, match=r"frames of videos \(2 a second\) in the request; at most 1 "):
        ask(RequestLimits(video_frames=1), clip)


def test_prompt_tokens_are_bounded() -> None:
    ask(RequestLimits(prompt_tokens=1000))
    with pytest.raises(InvalidArgument, match=r"prompt has at least \d+ tokens; at most 3 are accepted"):
        ask(RequestLimits(prompt_tokens=3))


@pytest.mark.parametrize("cls", [RequestLimits, SpeechGuard])
def test_what_cannot_be_read_is_said(cls: type[RequestLimits] | type[SpeechGuard]) -> None:
    assert cls.of(None) == cls()
    with pytest.raises(InvalidArgument, match="unknown field 'bogus'; valid fields: "):
        cls.of({"bogus": 1})
    first = next(iter(cls.__dataclass_fields__))
    with pytest.raises(InvalidArgument, match=f"got `str`.*{first}"):
        cls.of({first: "many"})


def test_speech_is_bounded_by_its_text() -> None:
    guard = SpeechGuard(spare_frames=50, frames_per_token=10)
    rng = random.Random()
    codes = [rng.randrange(1 << 30) for _ in range(149)]
    assert guard.why_ended(codes, text_tokens=10) is None
    assert guard.why_ended([*codes, 1], text_tokens=10) == "length"


@pytest.mark.parametrize("period", range(1, 9))
def test_speech_that_repeats_itself_is_ended(period: int) -> None:
    rng = random.Random()
    start = [rng.randrange(1 << 30) for _ in range(30)]
    pattern = [rng.randrange(1 << 30) for _ in range(period)]
    codes = (start + pattern * 100)[:129]
    guard = SpeechGuard(spare_frames=10_000)
    assert guard.why_ended(codes, 5) is None
    assert guard.why_ended((start + pattern * 100)[:130], 5) == "repetition"
    broken = (start + pattern * 100)[:130]
    broken[80] = -1
    assert guard.why_ended(broken, 5) is None
