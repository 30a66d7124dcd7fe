"""The parts of an answer, as they go to its client."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from omni_python.proto.errors import OmniError
from omni_python.proto.payload import AudioOutput, Payload, TextOutput
from omni_python.proto.timing import StageTiming
from omni_python.proto.trace import Trace

JOINED_BYTES = 64 << 10
"""Of chunks that go to a client together, at most: 0.7 s of speech, a small part of what Triton shares with a stub."""


class ResponseSink(Protocol):
    """Where a request's answer goes: chunks (several that waited may come as one) and terminal stages' results as they
    come, then once `fail`, or `finish` with when its stages worked, relative to the admission, and with its trace where
    the request asked for it. Of a traced request `traced` tells the W3C trace id before all that.

    All but `is_cancelled` are called on one thread at a time, in order.
    """

    def traced(self, trace_id: str) -> None: ...
    def chunk(self, payload: Payload) -> None: ...
    def result(self, stage: str, payload: Payload) -> None: ...
    def finish(self, timings: Sequence[StageTiming], trace: Trace | None = None) -> None: ...
    def fail(self, error: OmniError) -> None: ...
    def is_cancelled(self) -> bool: ...


class Chunks:
    """Chunks that wait for the same turn, and go to the client as one: text after text, or speech after speech."""

    __slots__ = ("_payloads", "_room", "_sink")

    def __init__(self, sink: ResponseSink, payload: Payload) -> None:
        self._sink = sink
        self._payloads = [payload]
        self._room = JOINED_BYTES - _size(payload)

    def take(self, payload: Payload) -> bool:
        """Whether it goes along, too."""
        first, size = self._payloads[0], _size(payload)
        if type(payload) is not type(first) or size > self._room or _rate(payload) != _rate(first):
            return False
        self._payloads.append(payload)
        self._room -= size
        return True

    @property
    def kind(self) -> type[Payload]:
        return type(self._payloads[0])

    def __call__(self) -> None:
        self._sink.chunk(_joined(self._payloads))


@dataclass(slots=True, frozen=True)
class LastPart:
    """The last of a request's results, and its end: a call that sends both."""

    sink: ResponseSink
    stage: str
    payload: Payload
    timings: Sequence[StageTiming]

    @property
    def is_small(self) -> bool:
        return _size(self.payload) < JOINED_BYTES

    def __call__(self) -> None:
        try:
            self.sink.result(self.stage, self.payload)
        finally:
            self.sink.finish(self.timings)


def _rate(payload: Payload) -> int:
    return payload.sample_rate if isinstance(payload, AudioOutput) else 0


def _size(payload: Payload) -> int:
    """Of what can be joined; all else fills a response by itself."""
    if type(payload) is TextOutput:  # isinstance asks the payloads' metaclass, and takes several times as long
        return len(payload.text)
    return payload.samples.nbytes if type(payload) is AudioOutput else JOINED_BYTES


def _joined(payloads: list[Payload]) -> Payload:
    first = payloads[0]
    if len(payloads) == 1:
        return first
    if isinstance(first, AudioOutput):
        samples = [payload.samples for payload in payloads if isinstance(payload, AudioOutput)]
        return AudioOutput(np.concatenate(samples), first.sample_rate)
    return TextOutput("".join(payload.text for payload in payloads if isinstance(payload, TextOutput)))
