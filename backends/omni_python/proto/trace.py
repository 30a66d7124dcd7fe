"""What happened to a request and when: in each stage, and on the way from one to the next."""

from __future__ import annotations

from typing import Literal

import msgspec

ORCHESTRATOR = "orchestrator"
"""The lane of the process that clients talk with; its hops lead from and to them, and to the stages."""

CLIENT = "client"

SpanKind = Literal["wait", "queue", "compute"]
"""A stage waits for (more) input, what it has got waits for its turn, or it is computed."""


class Span(msgspec.Struct, frozen=True, gc=False):
    """What a stage did with a request from `start` to `end`. Steps of computing close to each other are one span:
    `steps` of them, which took `busy` seconds, with at most `batch` requests at once, this one included."""

    kind: SpanKind
    start: float
    end: float
    busy: float = 0.0
    steps: int = 0
    batch: int = 0


class Passage(msgspec.Struct, frozen=True, gc=False):
    """One end of a way between stages: when the `first` and the `last` of `count` payloads were sent, or received.
    `stream` tells chunks from results."""

    source: str
    target: str
    stream: bool
    first: float
    last: float
    count: int


class StageRecord(msgspec.Struct, frozen=True):
    """One stage's part of a trace, in seconds of its host's monotonic clock: from its first input until it was done,
    and its first output (0 for none)."""

    stage: str
    start: float
    first: float
    end: float
    spans: tuple[Span, ...]
    sent: tuple[Passage, ...]
    received: tuple[Passage, ...]


class Lane(msgspec.Struct, frozen=True):
    """A stage in a trace, and the process that ran it: seconds since the request was admitted. `first` is its first
    output, None where there was none; `spans` are all of `start` to `end`."""

    stage: str
    process: str
    replica: int
    host: str
    start: float
    first: float | None
    end: float
    spans: tuple[Span, ...]


class Hop(msgspec.Struct, frozen=True):
    """Payloads from one stage to another: `count` chunks where `stream`, else a result. Seconds since the request was
    admitted, for the first and the last of them; None where an end did not tell, as when its process died or, for the
    last received, when the target was done with the request before: it then took `taken` of them."""

    source: str
    target: str
    stream: bool
    count: int
    taken: int
    sent: float | None
    received: float | None
    last_sent: float | None
    last_received: float | None


class Trace(msgspec.Struct, frozen=True):
    """One request. `id` is the server's own name for it, `trace_id` (32 hexadecimal digits) and `parent_id` (16, ""
    for none) those of its W3C trace context; it was admitted at `time` (seconds since 1970) and took `seconds`.
    `complete` tells that every stage that took part has told of its part. `lanes` begin with the orchestrator's."""

    id: str
    trace_id: str
    parent_id: str
    pipeline: str
    time: float
    seconds: float
    state: str
    error: str
    complete: bool
    lanes: tuple[Lane, ...]
    hops: tuple[Hop, ...]


encode_trace = msgspec.json.Encoder().encode
decode_trace = msgspec.json.Decoder(Trace).decode
