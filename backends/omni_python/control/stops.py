"""Notices processes that a signal has stopped: the kernel knows at once what silence tells only after long."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

PERIOD = 0.125
"""Seconds between two looks."""

STOPPED_S = 0.5
"""Seconds that a process has to have been stopped."""

LOOKS = 3
"""Looks in a row that have to find it so: whoever looks may have been stopped along with it, and be awake a moment
sooner."""

_STOPPED = "T (stopped)"  # job control; a debugger's stop is "t (tracing stop)"


@dataclass
class _Sighting:
    switches: tuple[str, str]
    since: float
    looks: int


class StopWatch:
    """Tells of processes of this host that job control (SIGSTOP and its like) keeps from running. Such a process dies
    of nothing and answers nobody, as if it hung. What a debugger stops is left alone, and so is what runs at times
    between the looks. Not for several threads at once."""

    def __init__(self) -> None:
        self._next = 0.0
        self._seen: dict[int, _Sighting] = {}

    def look(self, pids: Iterable[int], now: float) -> list[int]:
        """Those of `pids` that were stopped in the last looks, at least `LOOKS` and for `STOPPED_S` seconds, and all
        the time between them. `now` is of the monotonic clock; nothing is looked at within `PERIOD` seconds of the last
        look."""
        if now < self._next:
            return []
        self._next = now + PERIOD
        before, self._seen = self._seen, {}
        for pid in pids:
            switches = _switches_of_stopped(pid)
            if switches is not None:
                known = before.get(pid)
                if known is None or known.switches != switches:
                    known = _Sighting(switches, now, 0)
                known.looks += 1
                self._seen[pid] = known
        return [pid for pid, seen in self._seen.items() if seen.looks >= LOOKS and now - seen.since >= STOPPED_S]


def _switches_of_stopped(pid: int) -> tuple[str, str] | None:
    """How often a stopped process has left the processor, willingly and not, which tells two stops from each other.
    None for one that is not stopped, or is gone."""
    try:
        text = Path(f"/proc/{pid}/status").read_text(errors="replace")
    except OSError:
        return None
    fields = dict(line.split(":\t", 1) for line in text.splitlines() if ":\t" in line)
    if fields.get("State") != _STOPPED:
        return None
    return fields.get("voluntary_ctxt_switches", ""), fields.get("nonvoluntary_ctxt_switches", "")
