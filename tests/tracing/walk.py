"""Walks a trace: which moments between the admission and the last response does nothing in it account for?"""

from __future__ import annotations

from collections.abc import Iterator

from omni_python.proto.trace import ORCHESTRATOR, Trace

Interval = tuple[float, float]


def unexplained(trace: Trace) -> list[Interval]:
    """The gaps, in seconds since the admission: when no payload was on its way and no stage queued, computed or waited
    for input. That the orchestrator waits explains nothing: for whom?"""
    gaps, covered = [], 0.0
    for start, end in sorted(_explained(trace)):
        if start > covered:
            gaps.append((covered, start))
        covered = max(covered, end)
    if covered < trace.seconds:
        gaps.append((covered, trace.seconds))
    return gaps


def _explained(trace: Trace) -> Iterator[Interval]:
    for lane in trace.lanes:
        for span in lane.spans:
            if lane.stage != ORCHESTRATOR or span.kind != "wait":
                yield span.start, span.end
    for hop in trace.hops:
        for sent, received in ((hop.sent, hop.received), (hop.last_sent, hop.last_received)):
            if sent is not None and received is not None:
                yield sent, received


def check_lanes(trace: Trace) -> None:
    """Every lane's spans follow each other without a gap, from its start to its end; hops lead forward in time."""
    for lane in trace.lanes:
        at = lane.start
        for span in lane.spans:
            assert span.start == at, f"{lane.stage}: {span} does not follow {at}"
            assert span.end >= span.start
            assert (span.steps > 0) == (span.kind == "compute")
            assert span.busy <= span.end - span.start + 2e-6 * span.steps
            at = span.end
        assert at == lane.end, lane
    for hop in trace.hops:
        if hop.sent is not None and hop.received is not None:
            assert hop.received >= hop.sent, hop
