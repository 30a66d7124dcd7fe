"""How requests come: so many at once, or so many a second whatever becomes of them."""

from __future__ import annotations

import random
from dataclasses import dataclass


@dataclass(frozen=True)
class ClosedLoop:
    """`concurrency` clients, each of which asks again as soon as it was answered."""

    concurrency: int

    @property
    def level(self) -> float:
        return self.concurrency

    @property
    def default_warm_up(self) -> int:
        return 2 * self.concurrency

    def __str__(self) -> str:
        return f"concurrency {self.concurrency}"


@dataclass(frozen=True)
class OpenLoop:
    """Clients that know nothing of each other: Poisson arrivals, `rate` a second on average."""

    rate: float

    @property
    def level(self) -> float:
        return self.rate

    @property
    def default_warm_up(self) -> int:
        return max(2, round(2 * self.rate))

    def arrivals(self, warm_up: int, seconds: float, count: int | None, seed: int) -> list[float]:
        """Seconds at which requests are due: `warm_up` of them, then those of `seconds`, or `count` where that is
        given. Equal seeds give equal arrivals."""
        gaps = random.Random(f"{seed} {self.rate}")
        due: list[float] = []
        now = 0.0
        while True:
            now += gaps.expovariate(self.rate)
            if len(due) >= warm_up:
                if count is None and len(due) > warm_up and now - due[warm_up] > seconds:
                    return due
                if count is not None and len(due) == warm_up + count:
                    return due
            due.append(now)

    def __str__(self) -> str:
        return f"rate {self.rate:g}/s"


Load = ClosedLoop | OpenLoop


@dataclass(frozen=True)
class Plan:
    """How long a load lasts: `warm_up` requests that are not counted (None: twice the concurrency, or those of two
    seconds), then `seconds` of sending, or `requests` where that is given. `timeout` is the seconds that each may take,
    `seed` decides the order of the questions and the arrivals."""

    seconds: float = 20.0
    requests: int | None = None
    warm_up: int | None = None
    timeout: float = 120.0
    seed: int = 0

    def warm_up_of(self, load: Load) -> int:
        return load.default_warm_up if self.warm_up is None else self.warm_up
