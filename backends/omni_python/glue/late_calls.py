"""Calls that are to be made a while later, all on one thread: however many wait, they take no threads."""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable

log = logging.getLogger(__name__)


class LateCalls:
    """Makes calls in the order in which they were given, which suits a delay that is the same for all."""

    def __init__(self) -> None:
        self._calls: queue.SimpleQueue[tuple[float, Callable[..., object], tuple[object, ...]]] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._starting = threading.Lock()

    def add(self, delay: float, call: Callable[..., object], *arguments: object) -> None:
        """Make a call `delay` seconds from now, unless the process ends before. Returns at once, and never raises."""
        self._calls.put((time.monotonic() + delay, call, arguments))
        with self._starting:
            if self._thread is None:
                self._thread = self._started()

    def _started(self) -> threading.Thread | None:
        thread = threading.Thread(target=self._run, name="omni-late-calls", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:  # the next call tries again
            log.error("what is to be done later has to wait for a thread: %s", error)
            return None
        return thread

    def _run(self) -> None:
        while True:
            self._make(*self._calls.get())

    def _make(self, due: float, call: Callable[..., object], arguments: tuple[object, ...]) -> None:
        time.sleep(max(0.0, due - time.monotonic()))
        try:
            call(*arguments)
        except Exception:  # the others are not to be lost with it
            log.exception("what was to be done later failed")
