"""How long to wait before something that died is started again, and when to give it up."""

from __future__ import annotations

from collections import deque

WINDOW = 300.0
"""Seconds within which deaths are counted: too many are a crash loop."""

SETTLED = 10.0
"""What dies that many seconds after it died last does not do so at once after each start."""


LONGEST = 30.0
"""Seconds that a wait may grow to, where many deaths are allowed."""


class BackOff:
    """Allows `limit` deaths within `window` seconds. The wait before a new start is `first_delay` seconds, and twice as
    long as the last one where the last death is less than `SETTLED` seconds ago, up to `LONGEST`."""

    def __init__(self, limit: int, window: float, first_delay: float) -> None:
        self._limit = limit
        self._window = window
        self._first_delay = first_delay
        self._delay = 0.0
        self._deaths: deque[float] = deque()

    @property
    def count(self) -> int:
        """Deaths in the window that ended with the last one."""
        return len(self._deaths)

    def next_delay(self, now: float) -> float | None:
        """It died at `now`: the seconds to wait before it is started again; None if it is to be given up."""
        at_once = bool(self._deaths) and now - self._deaths[-1] < SETTLED + self._delay
        self._delay = min(2 * self._delay, LONGEST) if at_once else self._first_delay
        self._deaths.append(now)
        while now - self._deaths[0] > self._window:
            self._deaths.popleft()
        return None if len(self._deaths) > self._limit else self._delay
