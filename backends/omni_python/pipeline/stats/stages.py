"""What a stage has done so far, and what waits in it: counts for /metrics."""

from __future__ import annotations

import time
from collections import Counter

from omni_python.proto.errors import ErrorCode
from omni_python.proto.histogram import Histogram

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
"""Bounds of the histograms of times."""


class StageStats:
    """All but `began` is called with the stage's lock held, and the figures are read on any thread.

    A request waits from the moment its scheduler has the first input until that computes with it for the first time,
    and runs from then until its result. Under a scheduler that does not tell, it never waits.
    """

    def __init__(self) -> None:
        self.wait = Histogram(SECONDS)
        self.run = Histogram(SECONDS)
        """Of requests with a result."""
        self.aborts = 0
        """Requests that were given up while the stage had them."""
        self.errors: Counter[ErrorCode] = Counter()
        self._times: dict[str, list[float]] = {}
        """By request, `time.monotonic()` when it was queued and when its computation began (0: not yet)."""

    @property
    def waiting(self) -> int:
        return len(self._times) - self.running

    @property
    def running(self) -> int:
        return sum(began > 0 for _, began in list(self._times.values()))

    def queued(self, request_id: str) -> None:
        """The scheduler is given an input of the request; only the first one counts."""
        if request_id not in self._times:
            self._times[request_id] = [time.monotonic(), 0.0]

    def began(self, request_id: str) -> None:
        """The scheduler computes with the request; only the first time counts."""
        times = self._times.get(request_id)
        if times is not None and not times[1]:
            times[1] = time.monotonic()

    def ended(self, request_id: str, code: ErrorCode | None, was_open: bool) -> None:
        """The stage is done with a request: it has its result (`code` None), failed, or was given up (CANCELLED), which
        counts only where the stage had it."""
        times = self._times.pop(request_id, None)
        if times is not None:
            now = time.monotonic()
            queued, began = times
            began = began or (queued if code is None else now)
            self.wait.observe(began - queued)
            if code is None:
                self.run.observe(now - began)
        if code is ErrorCode.CANCELLED:
            self.aborts += was_open
        elif code is not None:
            self.errors[code] += 1
