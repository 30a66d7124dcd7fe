"""What may stand between a stage and its neighbours for a single request: to record it, or in place of them."""

from __future__ import annotations

from typing import Literal, Protocol, TypeVar

import msgspec

from omni_python.proto.payload import Payload
from omni_python.proto.sampling import SamplingParams
from omni_python.proto.work import OutgoingMessage

S = TypeVar("S", bound=msgspec.Struct)
InputKind = Literal["payload", "chunk", "done"]


class Tap(Protocol):
    """One request at one stage. Called on any thread; the stage does not expect exceptions."""

    def take(self, kind: InputKind, source: str, payload: Payload | None) -> Payload | None:
        """An input came; returned is what the stage gets in its place."""

    def give(self, message: OutgoingMessage) -> bool:
        """The scheduler gave something, or the request failed. True keeps it from going on its way."""

    def end(self) -> None:
        """The stage is done with the request. Called once, after all else."""


def with_seeds(payload: Payload, draw: int) -> Payload:
    """The payload with `draw` as the seed of all its sampling parameters that have none, so that what is sampled can be
    sampled again. The payload itself is left alone."""
    seeded = _seeded(payload, draw)
    return payload if seeded is None else seeded


def _seeded(value: S, draw: int) -> S | None:
    """A copy with the seeds; None where nothing is to change."""
    if isinstance(value, SamplingParams):
        return None if value.seed is not None else msgspec.structs.replace(value, seed=draw)
    changes = {}
    for name in value.__struct_fields__:
        field = getattr(value, name)
        if isinstance(field, msgspec.Struct) and (seeded := _seeded(field, draw)) is not None:
            changes[name] = seeded
    return msgspec.structs.replace(value, **changes) if changes else None
