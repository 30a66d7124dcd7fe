"""Remembers which requests are over."""

from __future__ import annotations

_KEPT = 65_536


class RecentIds:
    """The last `_KEPT` ids added; the oldest are forgotten first. Callers bring their own lock."""

    def __init__(self) -> None:
        self._ids: dict[str, None] = {}

    def add(self, request_id: str) -> None:
        self._ids[request_id] = None
        if len(self._ids) > _KEPT:
            del self._ids[next(iter(self._ids))]

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._ids
