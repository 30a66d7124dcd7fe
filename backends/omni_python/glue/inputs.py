"""Typed access to a request's tensors, with the checks that Triton leaves to the model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

import msgspec
import numpy as np

from omni_python.proto.errors import InvalidArgument
from omni_python.proto.json_size import MAX_JSON_BYTES, MAX_JSON_VALUES, has_too_many_values
from omni_python.proto.tensors import INPUTS

T = TypeVar("T")

_MEDIA = frozenset(("audio", "audio_sample_rate", "audios", "images", "videos"))


class Inputs:
    """By their names; a missing one is None, or empty."""

    _SINGLE = frozenset(spec.name for spec in INPUTS if spec.dims == (1,))

    def __init__(self, tensors: Mapping[str, np.ndarray]) -> None:
        self._tensors = tensors

    @property
    def have_media(self) -> bool:
        return not _MEDIA.isdisjoint(self._tensors)

    def get(self, name: str) -> np.ndarray | None:
        array = self._tensors.get(name)
        if array is not None and (array.ndim != 1 or (len(array) != 1 and name in self._SINGLE)):
            valid = [1 if name in self._SINGLE else -1]
            raise InvalidArgument(f"{name}: shape must be {valid}, not {list(array.shape)}")
        return array

    def count(self, name: str) -> int:
        """Of an input's elements."""
        array = self.get(name)
        return 0 if array is None else len(array)

    def files(self, name: str) -> list[bytes]:
        array = self.get(name)
        return [] if array is None else [_bytes(item) for item in array]

    def strings(self, name: str, most: int) -> list[str]:
        if self.count(name) > most:
            raise InvalidArgument(f"{name}: has {self.count(name)} elements; at most {most} are accepted")
        return [_text(name, item) for item in self.files(name)]

    def string(self, name: str) -> str:
        """The text of an input that has one item."""
        array = self.get(name)
        return "" if array is None else _text(name, _bytes(array.item()))

    def flag(self, name: str, default: bool) -> bool:
        array = self.get(name)
        return default if array is None else bool(array.item())

    def json(self, name: str, decoder: msgspec.json.Decoder[T], valid: str) -> T | None:
        """What the text of an input that has one item says; `valid` tells clients what it may be."""
        array = self.get(name)
        data = b"" if array is None else _bytes(array.item())
        if not data:
            return None
        if len(data) > MAX_JSON_BYTES:
            raise InvalidArgument(f"{name}: at most {MAX_JSON_BYTES >> 20} MiB of JSON are accepted")
        if has_too_many_values(data):
            raise InvalidArgument(f"{name}: has more than {MAX_JSON_VALUES} JSON values, the most that are accepted")
        try:
            return decoder.decode(_text(name, data))
        except msgspec.MsgspecError as error:
            raise InvalidArgument(f"{name}: {error}; valid is {valid}") from None
        except RecursionError:
            raise InvalidArgument(f"{name}: the JSON is nested too deep; valid is {valid}") from None


def _bytes(item: object) -> bytes:
    return bytes(item) if isinstance(item, bytes) else str(item).encode()


def _text(name: str, data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise InvalidArgument(f"{name}: must be UTF-8 text") from None
