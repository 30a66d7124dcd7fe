"""Typed payloads: what one stage hands to the next."""

from __future__ import annotations

from typing import Any, ClassVar

import msgspec
import numpy as np

from omni_python.proto.errors import OmniError


class UnknownPayload(OmniError):
    """A message names a payload type that this process has not imported."""


_TYPES: dict[str, type[Payload]] = {}


class Payload(msgspec.Struct, array_like=True):
    """Base of everything that crosses an edge.

    Subclasses are ordinary msgspec structs whose fields are plain Python values, nested structs or
    containers of them, `bytes`, `np.ndarray` or `torch.Tensor`. The field's annotation decides as what
    a tensor arrives: `np.ndarray` (a process without torch can read it) or `torch.Tensor`.

    Fields go over the wire by position: append new ones at the end, with defaults.
    Receivers must treat tensors as read-only; they may be views of another process's memory.
    """

    wire_name: ClassVar[str]
    """`<last module name>.<class name>`"""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        name = cls.wire_name = f"{cls.__module__.rsplit('.', 1)[-1]}.{cls.__qualname__}"
        known = _TYPES.get(name)
        if known is not None and known.__module__ != cls.__module__:
            raise TypeError(f"two payloads would be {name!r} on the wire: {known.__module__} and {cls.__module__}")
        _TYPES[name] = cls


def payload_type(name: str) -> type[Payload]:
    """The class behind a wire name; raises `UnknownPayload` where no imported module defines it."""
    try:
        return _TYPES[name]
    except KeyError:
        known = ", ".join(sorted(_TYPES)) or "none"
        raise UnknownPayload(f"payload type {name!r} is not known to this process (known: {known})") from None


class TextOutput(Payload):
    """Text for the client, from a terminal stage: a delta, or all of it.

    `finish_reason` ("stop", "length", ...) and the token counts are set on the last one alone.
    """

    text: str
    finish_reason: str | None = None
    num_input_tokens: int = 0
    num_output_tokens: int = 0


class AudioOutput(Payload):
    """Speech for the client, from a terminal stage: float32 samples [n] in -1..1, a chunk or all of them.

    `finish_reason` and `num_frames`, the codec frames that all samples were made of, are set on the last one alone.
    """

    samples: np.ndarray
    sample_rate: int
    finish_reason: str | None = None
    num_frames: int = 0
