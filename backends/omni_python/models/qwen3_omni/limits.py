"""Bounds of what one request may ask for and of what may be made of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec

from omni_python.proto.errors import InvalidArgument

L = TypeVar("L")


@dataclass(frozen=True)
class RequestLimits:
    """Of one request, all its media together: seconds of sound (those of videos too), pixels of pictures as they were
    sent, sampled frames of videos, and tokens of the prompt (None: what the context holds)."""

    audio_seconds: float = 1800.0
    image_pixels: int = 64_000_000
    video_frames: int = 768
    prompt_tokens: int | None = None

    @classmethod
    def of(cls, fields: Mapping[str, Any] | None) -> RequestLimits:
        """From a stage's `limits` argument. Raises `InvalidArgument` naming the field and what is valid."""
        return _read(cls, "limits", fields)

    def check_audio(self, seconds: float) -> None:
        if seconds > self.audio_seconds:
            raise InvalidArgument(
                f"{seconds:.1f} s of sound in the request; at most {self.audio_seconds:g} s are accepted"
            )

    def check_images(self, pixels: int) -> None:
        if pixels > self.image_pixels:
            raise InvalidArgument(f"{pixels} pixels of images in the request; at most {self.image_pixels} are accepted")

    def check_videos(self, frames: int) -> None:
        if frames > self.video_frames:
            raise InvalidArgument(
                f"{frames} frames of videos (2 a second) in the request; at most {self.video_frames} are accepted"
            )

    def check_prompt(self, tokens: int) -> None:
        if self.prompt_tokens is not None and tokens > self.prompt_tokens:
            raise InvalidArgument(f"the prompt has at least {tokens} tokens; at most {self.prompt_tokens} are accepted")


@dataclass(frozen=True)
class SpeechGuard:
    """Ends speech that goes on without a text to speak, once the whole text is there.

    Qwen3-Omni speaks 12.5 frames a second and rarely takes more than 8 frames for a token. `spare_frames` and
    `frames_per_token` bound the speech of a text; speech whose last `repeated_frames` frames (8 s) repeat one pattern
    of at most `longest_period` frames has got stuck. Requests that ignore the end of speech are let go on.
    """

    spare_frames: int = 250
    frames_per_token: int = 25
    repeated_frames: int = 100
    longest_period: int = 8

    @classmethod
    def of(cls, fields: Mapping[str, Any] | None) -> SpeechGuard:
        """From a stage's `speech_guard` argument; errors as those of `RequestLimits.of`."""
        return _read(cls, "speech_guard", fields)

    def why_ended(self, codes: Sequence[int], text_tokens: int) -> str | None:
        """`codes`: the first code of each frame so far. "length", "repetition", or None where the speech may go on."""
        if len(codes) >= self.spare_frames + self.frames_per_token * text_tokens:
            return "length"
        if len(codes) >= self.repeated_frames:
            tail = codes[-self.repeated_frames :]
            if any(tail[period:] == tail[:-period] for period in range(1, self.longest_period + 1)):
                return "repetition"
        return None


def _read(cls: type[L], where: str, fields: Mapping[str, Any] | None) -> L:
    given = dict(fields or {})
    valid = ", ".join(vars(cls)["__dataclass_fields__"])
    unknown = sorted(set(given) - set(vars(cls)["__dataclass_fields__"]))
    if unknown:
        raise InvalidArgument(f"{where}: unknown field {unknown[0]!r}; valid fields: {valid}")
    try:
        return msgspec.convert(given, cls)
    except msgspec.ValidationError as error:
        raise InvalidArgument(f"{where}: {error}; valid fields: {valid}") from None
