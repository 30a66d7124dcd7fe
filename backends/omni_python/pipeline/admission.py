"""How many requests a pipeline works on, and how many may wait for that."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Generic, TypeVar

from omni_python.proto.errors import Unavailable

T = TypeVar("T")


class Admission(Generic[T]):
    """Requests by id, each running or waiting, in order of arrival. Callers bring their own lock."""

    def __init__(self, max_in_flight: int, max_queued: int) -> None:
        self._max_in_flight = max_in_flight
        self._max_queued = max_queued
        self._running: set[str] = set()
        self._waiting: dict[str, T] = {}
        self._closed = ""

    @property
    def running(self) -> int:
        return len(self._running)

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    def close(self, why: str) -> None:
        """Refuse everything from now on."""
        self._closed = why

    def check(self) -> None:
        """Raises `Unavailable`, with the current numbers, where no request would be admitted."""
        if self._closed:
            raise Unavailable(self._closed)
        if len(self._running) >= self._max_in_flight and len(self._waiting) >= self._max_queued:
            raise Unavailable(
                f"{len(self._running)} requests are in flight and {len(self._waiting)} are waiting; this pipeline's "
                f"limits are {self._max_in_flight} and {self._max_queued}; try again later"
            )

    def admit(self, request_id: str, request: T) -> bool:
        """Whether the request is to start now; else it waits, and a `release` will return it. Raises as `check`."""
        self.check()
        if len(self._running) < self._max_in_flight:
            self._running.add(request_id)
            return True
        self._waiting[request_id] = request
        return False

    def release(self, request_id: str) -> Iterator[T]:
        """A request is over, wherever it was; those that are to start in its place."""
        self._running.discard(request_id)
        self._waiting.pop(request_id, None)
        while self._waiting and len(self._running) < self._max_in_flight:
            first = next(iter(self._waiting))
            self._running.add(first)
            yield self._waiting.pop(first)
