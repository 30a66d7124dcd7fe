"""The threads that submit requests to the entry stage: each submission is a blocking call."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")

STOP_TIMEOUT = 1.0


class SubmitThreads(Generic[T]):
    """`submit(request)` is called on one of `count` threads and must not raise."""

    def __init__(self, count: int, submit: Callable[[T], None]) -> None:
        self._count = count
        self._submit = submit
        self._requests: queue.SimpleQueue[T | None] = queue.SimpleQueue()
        self._threads: set[threading.Thread] = set()
        self._calling: set[threading.Thread] = set()

    def start(self) -> None:
        while len(self._threads) < self._count:
            thread = threading.Thread(target=self._run, name="omni-submit", daemon=True)
            self._threads.add(thread)
            thread.start()

    def replace_stuck(self) -> None:
        """New threads for those inside a call. A call into a process that died may never return: its thread is left
        behind, and ends if it ever does."""
        self._threads -= self._calling
        self.start()

    def stop(self) -> None:
        for _ in self._threads:
            self._requests.put(None)
        for thread in self._threads:
            thread.join(STOP_TIMEOUT)

    def put(self, request: T) -> None:
        self._requests.put(request)

    def _run(self) -> None:
        me = threading.current_thread()
        while me in self._threads and self._submit_next(me):
            pass

    def _submit_next(self, me: threading.Thread) -> bool:
        """A call of its own, so that nothing of a request is held while waiting for the next."""
        request = self._requests.get()
        if request is None:
            return False
        self._calling.add(me)
        self._submit(request)
        self._calling.discard(me)
        return True
