"""Puts a trace together from what each process has told, all by one clock."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import msgspec

from omni_python.pipeline.tracing.clocks import Crossing, clock_offsets
from omni_python.proto.trace import Hop, Lane, Passage, StageRecord

Clock = Callable[[float], float]
"""From seconds of a host's clock to seconds since the request was admitted."""

DIGITS = 6
"""Of seconds: microseconds are what the clocks are good for."""


@dataclass(frozen=True)
class TracePart:
    """What one stage noted, in a process."""

    process: str
    replica: int
    host: str
    record: StageRecord


def lanes_and_hops(parts: Sequence[TracePart]) -> tuple[tuple[Lane, ...], tuple[Hop, ...]]:
    """The lanes, and the hops between them, each in the order of their starts; but the first part, the orchestrator's,
    comes first. The request was admitted at its start."""
    clocks = _clocks(parts)
    lanes = [_lane(part, clocks[part.host]) for part in parts]
    hops = sorted(_hops(parts, clocks), key=lambda hop: hop.sent if hop.sent is not None else hop.received or 0.0)
    return (lanes[0], *sorted(lanes[1:], key=lambda lane: lane.start)), tuple(hops)


def _clocks(parts: Sequence[TracePart]) -> dict[str, Clock]:
    own = parts[0]
    hosts = {part.record.stage: part.host for part in parts}
    received = {_way(passage): passage for part in parts for passage in part.record.received}
    crossings = [
        Crossing(part.host, hosts[sent.target], sent.first, there.first)
        for part in parts
        for sent in part.record.sent
        if (there := received.get(_way(sent))) is not None and hosts[sent.target] != part.host
    ]
    offsets = clock_offsets(own.host, crossings)
    return {host: _clock(own.record.start + offsets.get(host, 0.0)) for host in hosts.values()}


def _clock(admitted: float) -> Clock:
    return lambda time: round(time - admitted, DIGITS)


def _lane(part: TracePart, clock: Clock) -> Lane:
    record = part.record
    return Lane(
        record.stage,
        part.process,
        part.replica,
        part.host,
        clock(record.start),
        clock(record.first) if record.first else None,
        clock(record.end),
        tuple(
            msgspec.structs.replace(span, start=clock(span.start), end=clock(span.end), busy=round(span.busy, DIGITS))
            for span in record.spans
        ),
    )


def _hops(parts: Sequence[TracePart], clocks: dict[str, Clock]) -> Iterator[Hop]:
    sent = {_way(passage): (passage, clocks[part.host]) for part in parts for passage in part.record.sent}
    received = {_way(passage): (passage, clocks[part.host]) for part in parts for passage in part.record.received}
    for way in sent.keys() | received.keys():
        source, target, stream = way
        first_sent, last_sent, given = _ends(sent.get(way))
        first_received, last_received, taken = _ends(received.get(way))
        count = max(given, taken)
        if taken < count:
            last_received = None
        yield Hop(source, target, stream, count, taken, first_sent, first_received, last_sent, last_received)


def _ends(noted: tuple[Passage, Clock] | None) -> tuple[float | None, float | None, int]:
    if noted is None:
        return None, None, 0
    passage, clock = noted
    return clock(passage.first), clock(passage.last), passage.count


def _way(passage: Passage) -> tuple[str, str, bool]:
    return passage.source, passage.target, passage.stream
