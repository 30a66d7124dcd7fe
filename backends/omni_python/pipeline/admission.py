"""How many requests a pipeline works on, how many may wait for that, and whether one more can end in time."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from omni_python.proto.errors import Unavailable

T = TypeVar("T")

SERVED_KEPT = 64
"""Served requests from whose ends the pace is taken."""

LATE_SHARE = 1 / 8
"""Of the last ends (about `ENDS` of them): more that missed their deadlines are the sign of overload."""
ENDS = 16

HEADROOM = 0.8
"""Of its time, what a request may be expected to take: the pace tells the mean."""

STRAIN = 10.0
"""Seconds at least for which requests go on being judged by the pace after one was refused for it, and for which a pace
is believed where nothing ends."""


class Admission(Generic[T]):
    """Requests by id, each running or waiting, in order of arrival. Callers bring their own lock.

    Whatever the limits are, a pipeline to which more comes than it can take would end up working on requests that then
    miss their deadlines. So once some do, those are refused at once that cannot be served in time at the present pace.
    """

    def __init__(self, max_in_flight: int, max_queued: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._max_in_flight = max_in_flight
        self._max_queued = max_queued
        self._running: set[str] = set()
        self._waiting: dict[str, T] = {}
        self._closed = ""
        self._clock = clock
        self._pace = _Pace(clock())
        self._strained_until = -math.inf

    @property
    def running(self) -> int:
        return len(self._running)

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    @property
    def is_full(self) -> bool:
        """Whether one more would have to wait."""
        return len(self._running) >= self._max_in_flight

    def close(self, why: str) -> None:
        """Refuse everything from now on."""
        self._closed = why

    def check(self) -> None:
        """Raises `Unavailable`, with the current numbers, where no request would be admitted."""
        if self._closed:
            raise Unavailable(self._closed)
        if self.is_full and len(self._waiting) >= self._max_queued:
            raise Unavailable(
                f"{len(self._running)} requests are in flight and {len(self._waiting)} are waiting; this pipeline's "
                f"limits are {self._max_in_flight} and {self._max_queued}; try again later"
            )

    def admit(self, request_id: str, request: T, seconds: float = math.inf) -> bool:
        """Whether the request, which has so many seconds, is to start now; else it waits, and a `release` will return
        it. Raises `Unavailable` as `check` does, and where the request would come too late."""
        self.check()
        self._check_pace(seconds)
        if not self.is_full:
            self._running.add(request_id)
            return True
        self._waiting[request_id] = request
        return False

    def release(self, request_id: str, served: bool = False, late: bool = False) -> Sequence[T]:
        """A request is over, wherever it was: `served` in full, `late` for its deadline, or neither. Those that are to
        start in its place."""
        self._pace.pass_to(self._clock(), busy=len(self._running) + len(self._waiting) > 0)
        if served or late:
            self._pace.count(late)
        self._running.discard(request_id)
        return self._next(request_id) if self._waiting else ()

    def _next(self, ended: str) -> list[T]:
        self._waiting.pop(ended, None)
        starting = []
        while self._waiting and not self.is_full:
            first = next(iter(self._waiting))
            self._running.add(first)
            starting.append(self._waiting.pop(first))
        return starting

    def _check_pace(self, seconds: float) -> None:
        now, held = self._clock(), len(self._running) + len(self._waiting)
        self._pace.pass_to(now, busy=held > 0)
        if not held or self._pace.is_stale() or not (now < self._strained_until or self._pace.is_late()):
            return
        expected = self._pace.seconds_for(held + 1)
        if expected > HEADROOM * seconds:
            self._strained_until = now + max(STRAIN, seconds)
            raise Unavailable(
                f"{held} requests are in flight or waiting, and at the present pace one more would take about "
                f"{expected:.3g} s, too long for its deadline of {seconds:.3g} s; try again later"
            )


class _Pace:
    """How fast requests were served lately, in the time in which there was work, and the share of late ones."""

    def __init__(self, now: float) -> None:
        self._now = now
        self._busy = 0.0  # seconds of work until now
        self._last_end = now
        self._late = 0.0
        self._served: deque[float] = deque(maxlen=SERVED_KEPT)  # after so many seconds of work

    def pass_to(self, now: float, busy: bool) -> None:
        """It is `now`; there was work, or none, since the last call."""
        self._busy += (now - self._now) * busy
        self._now = now

    def count(self, late: bool) -> None:
        """A request has ended, served or late."""
        self._last_end = self._now
        self._late += (late - self._late) / ENDS
        if not late:
            self._served.append(self._busy)

    def is_late(self) -> bool:
        return self._late > LATE_SHARE

    def is_stale(self) -> bool:
        """Nothing has ended for so long that nobody knows the pace."""
        return self._now - self._last_end > STRAIN + 3 * self.seconds_for(1)

    def seconds_for(self, requests: int) -> float:
        """To serve so many; 0 where nothing is known."""
        if len(self._served) < 2:
            return 0.0
        return requests * (self._busy - self._served[0]) / (len(self._served) - 1)
