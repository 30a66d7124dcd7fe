"""Waking on time: sleeps that end when they should, and threads kept awake that the end of a large copy will need.

While nothing happens for longer than about 0.2 ms, a virtual CPU is given back to its host, and whoever is to be woken
on it then is woken some 20 us late: on the way of an answer, ZMQ's threads and the receiving one, one after the other.
A copy of 64 MB or more takes that long. Until it is over, but for `LONGEST` at most, this process sends itself a
message now and then, which takes the same way.
"""

from __future__ import annotations

import ctypes
import queue
import sys
import threading
import time
from collections.abc import Callable

KEEP_AWAKE = True
"""False for comparisons: nobody is kept awake."""

LARGE = 64 << 20
"""Bytes from which on a copy counts as large: 0.17 ms over NVLink."""

LONGEST = 1e-3
"""Seconds for which one copy keeps anybody awake, which takes about half a CPU."""

NAP = 60e-6
"""Seconds between messages: hosts wait for about three times as long before they take a CPU away."""


_PR_SET_TIMERSLACK = 29


def sleep_precisely() -> None:
    """Let this thread's sleeps end when they should; Linux makes them up to 50 us longer otherwise."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_TIMERSLACK, ctypes.c_ulong(1))  # nanoseconds; 0 would mean the default


class Awake:
    """`nudge` sends this process a message that changes nothing. The thread is started for the first large copy."""

    def __init__(self, nudge: Callable[[], object]) -> None:
        self._nudge = nudge
        self._copies: queue.SimpleQueue[_Copy | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()

    def during(self, nbytes: int, end: Callable[[], None]) -> Callable[[], None]:
        """A copy of `nbytes` is under way until what this returns is called, in place of `end`, which it calls. From
        any thread."""
        if nbytes < LARGE or not KEEP_AWAKE:
            return end
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="omni-awake", daemon=True)
                self._thread.start()
        copy = _Copy(end)
        self._copies.put(copy)
        return copy.finish

    def close(self) -> None:
        self._copies.put(None)
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        sleep_precisely()
        while (copy := self._copies.get()) is not None:
            while copy.is_under_way():
                time.sleep(NAP)
                self._nudge()


class _Copy:
    def __init__(self, end: Callable[[], None]) -> None:
        self._end = end
        self._over = False
        self._until = time.monotonic() + LONGEST

    def is_under_way(self) -> bool:
        """As far as anybody is to be kept awake for it."""
        return not self._over and time.monotonic() < self._until

    def finish(self) -> None:
        self._over = True
        self._end()
