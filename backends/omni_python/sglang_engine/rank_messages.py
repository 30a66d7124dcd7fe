"""What the ranks of a tensor-parallel engine say to each other, in the project's codec, over a private pair of sockets.

Rank 0 sends everything but `Joined`, `Alive` and `Broken`. What it sends is what its own engine is told and decides, in
the same order, so that every rank's SGLang makes the same plan.
"""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable, Mapping
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import numpy as np
import torch

from omni_python.proto.codec import EncodedPayload, PayloadDecoder
from omni_python.proto.errors import OmniError
from omni_python.proto.messages import Envelope
from omni_python.proto.payload import Payload
from omni_python.sglang_engine.config import EngineConfig


class Launch(Payload):
    """The first message: the follower's engine."""

    config: dict[str, Any]

    @classmethod
    def of(cls, config: EngineConfig) -> Launch:
        fields = {field.name: getattr(config, field.name) for field in dataclasses.fields(config)}
        return cls({name: _plain(value) for name, value in fields.items()})

    def engine_config(self) -> EngineConfig:
        given = {**self.config, "checkpoint": Path(self.config["checkpoint"])}
        return EngineConfig(**{**given, "dtype": getattr(torch, given["dtype"])})


def _plain(value: Any) -> Any:
    if isinstance(value, torch.dtype):
        return str(value).removeprefix("torch.")
    if isinstance(value, Mapping):
        return dict(value)
    return str(value) if isinstance(value, Path) else value


class Joined(Payload):
    """Follower to rank 0: SGLang is imported, and I am about to meet the other ranks."""


class Alive(Payload):
    """Follower to rank 0, every `SIGN_PERIOD` seconds from when its engine is built; it has ended so many steps."""

    steps: int


class Broken(Payload):
    """Follower to rank 0: I end, for this reason."""

    reason: str


class Add(Payload):
    """As `Engine.add`; `ids` int64 [n]."""

    name: str
    ids: torch.Tensor
    positions: torch.Tensor
    max_tokens: int


class Abort(Payload):
    name: str


class Step(Payload):
    """Compute a batch; `waiting` rows are not ready, None where all are."""

    waiting: list[str] | None = None


class Plan(Payload):
    """Within a step: the rows of the batch, "" for those that were aborted, and which tokens of each are computed.

    `free` slots are left in the KV cache. `uncached` rows are not remembered for others; `deepstack` features will be
    sent with the embeddings.
    """

    names: list[str]
    free: int
    starts: list[int] = []
    tokens: list[int] = []
    uncached: list[bool] = []
    deepstack: bool = False


class Choices(Payload):
    """Within a step: what was chosen for each row."""

    names: list[str]
    tokens: list[int]
    finishes: list[str | None]
    failed: list[bool]


class HookFailed(Payload):
    """Within a step, in place of `Plan` or `Choices`: the step failed on rank 0 alone, outside the forward pass."""


class FailBatch(Payload):
    """As `Engine.fail_batch`."""


class ResetCache(Payload):
    """As `Engine.reset_cache`."""


class Profile(Payload):
    """At any time: profile yourself for `seconds`, and write a trace beside the one at `path`."""

    path: str
    seconds: float


class Stop(Payload):
    """The last message."""


SIGN_PERIOD = 1.0

P = TypeVar("P", bound=Payload)

_decode = msgspec.msgpack.Decoder(Envelope).decode


def encode(message: Payload) -> bytes:
    encoded = EncodedPayload(message)
    return msgspec.msgpack.encode(Envelope(encoded.type, encoded.body, encoded.inline()))


class Link:
    """A follower's end, or rank 0's; one thread reads, any may `send`. The connection is used for bytes alone, never
    for objects."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.on_profile: Callable[[Profile], None] = lambda message: None
        self._decoder = PayloadDecoder()
        self._sending = threading.Lock()

    def send(self, message: Payload) -> None:
        """Raises `OSError` where the other end is gone."""
        frame = encode(message)
        with self._sending:
            self.connection.send_bytes(frame)

    def receive(self) -> Payload:
        """Blocks. Raises `EOFError` where the other end is gone."""
        while isinstance(message := self._receive(), Profile):
            self.on_profile(message)
        return message

    def _receive(self) -> Payload:
        try:
            envelope = _decode(self.connection.recv_bytes())
        except ConnectionResetError:
            raise EOFError from None
        return self._decoder.decode(envelope.type, envelope.body, np.frombuffer(envelope.inline, np.uint8))

    def expect(self, kind: type[P]) -> P:
        message = self.receive()
        if not isinstance(message, kind):
            raise OmniError(f"rank 0 sent {type(message).__name__} where {kind.__name__} was due")
        return message
