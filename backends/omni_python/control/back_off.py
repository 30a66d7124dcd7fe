"""How long to wait before something that died is started again, and when to give it up."""

from __future__ import annotations

from collections import deque


class BackOff:
    """Allows `limit` deaths within `window` seconds; the wait before a new start begins with `first_delay` seconds and
    doubles with each death in the window."""

    def __init__(self, limit: int, window: float, first_delay: float) -> None:
        self._limit = limit
        self._window = window
        self._first_delay = first_delay
        self._deaths: deque[float] = deque()

    @property
    def count(self) -> int:
        """Deaths in the window that ended with the last one."""
        return len(self._deaths)

    def next_delay(self, now: float) -> float | None:
        """It died at `now`: the seconds to wait before it is started again; None if it is to be given up."""
        self._deaths.append(now)
        while now - self._deaths[0] > self._window:
            self._deaths.popleft()
        if len(self._deaths) > self._limit:
            return None
        return float(self._first_delay * 2 ** (len(self._deaths) - 1))
