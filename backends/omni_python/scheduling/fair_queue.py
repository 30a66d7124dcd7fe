"""A queue in which no request waits behind another one's backlog."""

from __future__ import annotations

import queue
import threading
from collections import deque
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar


class _OfRequest(Protocol):
    request_id: str


T = TypeVar("T", bound=_OfRequest)


class FairQueue(Generic[T]):
    """First in, first out within a request; round robin between requests. Unbounded; any number of threads.

    Used like `queue.SimpleQueue`; a None that is put wakes one reader with None.
    """

    def __init__(self) -> None:
        self._turns: queue.SimpleQueue[str | None] = queue.SimpleQueue()  # each request with a backlog stands here once
        self._backlogs: dict[str, deque[T]] = {}
        self._lock = threading.Lock()

    def put(self, item: T | None) -> None:
        if item is None:
            self._turns.put(None)
            return
        request_id = item.request_id
        with self._lock:
            backlog = self._backlogs.get(request_id)
            if backlog is None:
                self._backlogs[request_id] = deque((item,))
                self._turns.put(request_id)
            else:
                backlog.append(item)

    def get(self, block: bool = True, timeout: float | None = None) -> T | None:
        """The next item. Raises `queue.Empty` as `queue.SimpleQueue.get` does."""
        while (request_id := self._turns.get(block, timeout)) is not None:
            with self._lock:
                backlog = self._backlogs.get(request_id)
                if backlog is None:  # discarded meanwhile
                    continue
                item = backlog.popleft()
                if backlog:
                    self._turns.put(request_id)
                else:
                    del self._backlogs[request_id]
            return item
        return None

    def get_nowait(self) -> T | None:
        return self.get(block=False)

    def discard(self, request_id: str) -> None:
        """Drop everything of a request."""
        with self._lock:
            self._backlogs.pop(request_id, None)

    def empty(self) -> bool:
        return not self._backlogs

    def __len__(self) -> int:
        with self._lock:
            return sum(map(len, self._backlogs.values()))


class DirectQueue(FairQueue[T]):
    """Never holds anything: what is put goes to `take(item)` at once, on the thread that puts it."""

    def __init__(self, take: Callable[[T], object]) -> None:
        super().__init__()
        self._take = take

    def put(self, item: T | None) -> None:
        if item is not None:
            self._take(item)
