"""When the time of a request is up, in each stage of a process."""

from __future__ import annotations

import heapq
import logging
import math
import threading
import time
from collections.abc import Callable

log = logging.getLogger(__name__)

SPARE = 64
"""Entries of ended requests that are kept at least before the heap is made anew."""


class DeadlineWatch:
    """Calls `expired(stage, request_id)` on a thread of its own once the deadline has passed, unless discarded before.

    Deadlines are seconds of `time.monotonic()`; infinity stands for none.
    """

    def __init__(self, expired: Callable[[str, str], None]) -> None:
        self._expired = expired
        self._due: dict[tuple[str, str], float] = {}
        self._heap: list[tuple[float, tuple[str, str]]] = []
        self._wakes = math.inf  # when the thread that waits will look again
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="omni-deadlines", daemon=True)

    def __len__(self) -> int:
        return len(self._due)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        with self._changed:
            self._stopping = True
            self._changed.notify()
        self._thread.join()

    def add(self, stage: str, request_id: str, deadline: float) -> None:
        if deadline == math.inf:
            return
        key = (stage, request_id)
        with self._lock:
            self._due[key] = deadline
            heapq.heappush(self._heap, (deadline, key))
            if deadline < self._wakes:
                self._changed.notify()

    def discard(self, stage: str, request_id: str) -> None:
        with self._lock:
            self._due.pop((stage, request_id), None)
            if len(self._heap) > 2 * len(self._due) + SPARE:
                self._heap = [(deadline, key) for key, deadline in self._due.items()]
                heapq.heapify(self._heap)

    def _run(self) -> None:
        while (overdue := self._wait()) is not None:
            for stage, request_id in overdue:
                try:
                    self._expired(stage, request_id)
                except Exception:  # without this thread there would be no deadlines
                    log.exception("stage %s could not end request %s, whose time is up", stage, request_id)

    def _wait(self) -> list[tuple[str, str]] | None:
        """Those whose time is up, as soon as there are any; None at the end."""
        with self._changed:
            while not self._stopping:
                overdue = []
                now = time.monotonic()
                while self._heap and self._heap[0][0] <= now:
                    deadline, key = heapq.heappop(self._heap)
                    if self._due.get(key) == deadline:
                        del self._due[key]
                        overdue.append(key)
                if overdue:
                    return overdue
                self._wakes = self._heap[0][0] if self._heap else math.inf
                self._changed.wait(min(self._wakes - now, threading.TIMEOUT_MAX))
                self._wakes = -math.inf
            return None
