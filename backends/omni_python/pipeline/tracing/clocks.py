"""One clock for what several hosts have noted.

Processes of one host share CLOCK_MONOTONIC; hosts do not. A payload is never received before it was sent, so each hop
between two hosts bounds how far their clocks are apart: from one side where it goes one way, from the other where it
goes back. In the middle between the two narrowest bounds the offset is off by at most half of the two hops' times, the
same as NTP's estimate from one exchange.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Crossing:
    """A hop between hosts: sent at `sent` of one's clock, received at `received` of the other's."""

    source: str
    target: str
    sent: float
    received: float


def clock_offsets(reference: str, crossings: Iterable[Crossing]) -> dict[str, float]:
    """Seconds by which each host's clock is ahead of the host `reference`'s, which is 0.

    A host that is only reached by way of another is measured against that one; where hops go only one way, the fastest
    is taken to have needed no time. Hosts that no hop leads to are left out.
    """
    ahead: dict[tuple[str, str], float] = {}  # of (a, b): b's clock is at most this far ahead of a's
    neighbours = defaultdict(set)
    for hop in crossings:
        pair = hop.source, hop.target
        ahead[pair] = min(ahead.get(pair, float("inf")), hop.received - hop.sent)
        neighbours[hop.source].add(hop.target)
        neighbours[hop.target].add(hop.source)
    offsets = {reference: 0.0}
    waiting = [reference]
    while waiting:
        known = waiting.pop(0)
        for host in sorted(neighbours[known] - offsets.keys()):
            offsets[host] = offsets[known] + _between(ahead.get((known, host)), ahead.get((host, known)))
            waiting.append(host)
    return offsets


def _between(there: float | None, back: float | None) -> float:
    """The offset, at most `there` and at least -`back`."""
    if there is None or back is None:
        return there if there is not None else -(back or 0.0)
    return (there - back) / 2
