"""The threads that bring requests on their way: each may have to wait for room in the relay."""

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
        self._requests: dict[str, T] = {}  # by id
        self._ids: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._threads = [threading.Thread(target=self._run, name="omni-submit", daemon=True) for _ in range(count)]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        for _ in self._threads:
            self._ids.put(None)
        for thread in self._threads:
            thread.join(STOP_TIMEOUT)

    def put(self, request_id: str, request: T) -> None:
        self._requests[request_id] = request
        self._ids.put(request_id)

    def discard(self, request_id: str) -> None:
        """Let go of a request that no thread has taken yet."""
        self._requests.pop(request_id, None)

    def _run(self) -> None:
        while self._submit_next():
            pass

    def _submit_next(self) -> bool:
        """A call of its own, so that nothing of a request is held while waiting for the next."""
        request_id = self._ids.get()
        if request_id is None:
            return False
        request = self._requests.pop(request_id, None)
        if request is not None:
            self._submit(request)
        return True
