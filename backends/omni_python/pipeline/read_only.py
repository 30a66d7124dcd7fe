"""A check for development: does a stage write to what a neighbour in its process handed to it by reference?

Payloads inside a process are passed by reference, and one that goes to several stages is shared by them, so that every
stage must treat its inputs as read-only: tensors, arrays, and the containers around them; and nobody may write to what
it has handed over. Nothing enforces that in production. With the environment variable OMNI_CHECK_READ_ONLY=1 each stage
gets a copy of its own, which is hashed (and its tensors' version counters are read) when it is handed over and again
before the stage's result goes on; so is the original. Who wrote fails the request with an error that names it.
"""

from __future__ import annotations

import copy
import hashlib
import os
import sys
import threading
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import msgspec

from omni_python.proto.codec import CodecError, EncodedPayload
from omni_python.proto.errors import OmniError
from omni_python.proto.payload import Payload

VARIABLE = "OMNI_CHECK_READ_ONLY"


@dataclass(frozen=True)
class _Lent:
    source: str
    original: Payload
    original_state: tuple[object, ...]
    copy: Payload
    copy_state: tuple[object, ...]


class ReadOnlyCheck:
    """What is lent to the stages of one process, by stage and request. Thread-safe."""

    def __init__(self) -> None:
        self._lent: dict[tuple[str, str], list[_Lent]] = defaultdict(list)
        self._lock = threading.Lock()

    @classmethod
    def if_wanted(cls) -> ReadOnlyCheck | None:
        return cls() if os.environ.get(VARIABLE, "") not in ("", "0") else None

    def lend(self, source: str, target: str, request_id: str, payload: Payload) -> Payload:
        """A payload goes from one stage to another: what to hand over in its place."""
        given = copy.deepcopy(payload)
        lent = _Lent(source, payload, _state(payload), given, _state(given))
        with self._lock:
            self._lent[target, request_id].append(lent)
        return given

    def check(self, target: str, request_id: str) -> None:
        """The stage is done with the request's inputs. Raises `OmniError` if one of them was written to."""
        with self._lock:
            used = self._lent.pop((target, request_id), [])
        for lent in used:
            what = f"the {type(lent.copy).__name__} that stage {lent.source} handed to stage {target} by reference"
            if _state(lent.copy) != lent.copy_state:
                raise OmniError(f"stage {target} wrote to {what}, which is read-only: copy it first")
            if _state(lent.original) != lent.original_state:
                raise OmniError(f"stage {lent.source} wrote to {what}, which is read-only from then on: copy it first")

    def discard(self, target: str, request_id: str) -> None:
        with self._lock:
            self._lent.pop((target, request_id), None)


def _state(payload: Payload) -> tuple[object, ...]:
    """Equal for a payload that nobody has written to: its hash where it can be encoded, and its tensors' versions."""
    versions = tuple(_version(tensor) for tensor in _tensors(payload))
    try:
        encoded = EncodedPayload(payload)
    except CodecError:
        return versions
    return (hashlib.blake2b(encoded.body + encoded.inline(), digest_size=16).digest(), *versions)


def _version(tensor: Any) -> int | None:
    try:
        return int(tensor._version)
    except RuntimeError:  # tensors made in inference mode have none
        return None


def _tensors(value: object) -> Iterator[Any]:
    """The torch tensors in a payload."""
    if isinstance(value, msgspec.Struct):
        for name in value.__struct_fields__:
            yield from _tensors(getattr(value, name))
    elif isinstance(value, dict):
        for item in value.values():
            yield from _tensors(item)
    elif isinstance(value, list | tuple | set):
        for item in value:
            yield from _tensors(item)
    elif (torch := sys.modules.get("torch")) is not None and isinstance(value, torch.Tensor):
        yield value
