"""The threads that bring requests on their way: each may have to wait for stage processes, or for room in the relay."""

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
        self._submit = submit
        self._requests: queue.SimpleQueue[T | None] = queue.SimpleQueue()
        self._threads = [threading.Thread(target=self._run, name="omni-submit", daemon=True) for _ in range(count)]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        for _ in self._threads:
            self._requests.put(None)
        for thread in self._threads:
            thread.join(STOP_TIMEOUT)

    def put(self, request: T) -> None:
        self._requests.put(request)

    def _run(self) -> None:
        while self._submit_next():
            pass

    def _submit_next(self) -> bool:
        """A call of its own, so that nothing of a request is held while waiting for the next."""
        request = self._requests.get()
        if request is None:
            return False
        self._submit(request)
        return True
