"""Remembers which requests are over."""

from __future__ import annotations


class RecentIds:
    """The last `limit` ids added; the oldest are forgotten first. Callers bring their own lock."""

    def __init__(self, limit: int = 65_536) -> None:
        self._limit = limit
        self._ids: dict[str, None] = {}

    def add(self, request_id: str) -> None:
        self._ids[request_id] = None
        if len(self._ids) > self._limit:
            del self._ids[next(iter(self._ids))]

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._ids
