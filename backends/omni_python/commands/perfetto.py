"""A trace as a file for Perfetto (ui.perfetto.dev) and chrome://tracing: Chrome's trace event format, in JSON."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from omni_python.proto.trace import Hop, Lane, Trace

Event = dict[str, Any]


def perfetto(trace: Trace) -> str:
    """The file's text: a track for each stage below that of its process, arrows for the hops between them, and a track
    for each hop, as wide as it took."""
    return json.dumps({"traceEvents": list(_events(trace)), "displayTimeUnit": "ms", "otherData": _about(trace)})


def _about(trace: Trace) -> Event:
    return {name: getattr(trace, name) for name in ("id", "trace_id", "pipeline", "time", "state", "error")}


def _events(trace: Trace) -> Iterator[Event]:
    processes = list(dict.fromkeys((lane.process, lane.replica) for lane in trace.lanes))
    places: dict[str, tuple[int, int]] = {}  # each stage's process and thread, as the format calls its tracks
    for pid, (process, replica) in enumerate(processes, 1):
        yield _named("process_name", f"{process} (replica {replica})" if replica else process, pid)
        for tid, lane in enumerate(
            (lane for lane in trace.lanes if (lane.process, lane.replica) == (process, replica)), 1
        ):
            places[lane.stage] = pid, tid
            yield _named("thread_name", lane.stage, pid, tid)
            yield from _lane(lane, pid, tid)
    hops_pid = len(processes) + 1
    yield _named("process_name", "hops", hops_pid)
    lanes = {lane.stage: lane for lane in trace.lanes}
    flow = 0
    for tid, hop in enumerate(trace.hops, 1):
        yield _named("thread_name", f"{hop.source} to {hop.target}", hops_pid, tid)
        start = hop.sent if hop.sent is not None else hop.received
        end = hop.last_received if hop.last_received is not None else hop.last_sent
        if start is not None and end is not None:
            what = f"{hop.count} chunks" if hop.stream else "result"
            yield _slice(what, start, max(end, start), hops_pid, tid, _hop_arguments(hop))
        for sent, received in dict.fromkeys(((hop.sent, hop.received), (hop.last_sent, hop.last_received))):
            if sent is None or received is None or hop.source not in lanes or hop.target not in lanes:
                continue
            flow += 1
            name = f"{hop.source} to {hop.target}"
            yield _arrow("s", name, flow, _inside(lanes[hop.source], sent), *places[hop.source])
            yield {**_arrow("f", name, flow, _inside(lanes[hop.target], received), *places[hop.target]), "bp": "e"}


def _lane(lane: Lane, pid: int, tid: int) -> Iterator[Event]:
    about = {"host": lane.host, "first output": lane.first}
    yield _slice(lane.stage, lane.start, lane.end, pid, tid, about)
    for span in lane.spans:
        about = {"steps": span.steps, "busy seconds": span.busy, "requests in a step": span.batch}
        yield _slice(span.kind, span.start, span.end, pid, tid, about if span.kind == "compute" else {})


def _hop_arguments(hop: Hop) -> Event:
    return {name: getattr(hop, name) for name in ("taken", "sent", "received", "last_sent", "last_received")}


def _inside(lane: Lane, time: float) -> float:
    """An arrow begins and ends inside a slice; a result is sent when the stage is done."""
    return min(max(time, lane.start), lane.end)


def _named(what: str, name: str, pid: int, tid: int = 0) -> Event:
    return {"ph": "M", "name": what, "pid": pid, "tid": tid, "args": {"name": name}}


def _slice(name: str, start: float, end: float, pid: int, tid: int, arguments: Event) -> Event:
    return {
        "ph": "X",
        "name": name,
        "ts": _microseconds(start),
        "dur": _microseconds(end - start),
        "pid": pid,
        "tid": tid,
        "args": arguments,
    }


def _arrow(phase: str, name: str, number: int, time: float, pid: int, tid: int) -> Event:
    return {"ph": phase, "cat": "hop", "name": name, "id": number, "ts": _microseconds(time), "pid": pid, "tid": tid}


def _microseconds(seconds: float) -> float:
    return round(seconds * 1e6, 1)
