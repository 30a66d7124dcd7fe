"""Counts of observations by size."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate


class Histogram:
    """Not thread-safe: one thread observes, or all under one lock. Another may read meanwhile."""

    __slots__ = ("_counts", "bounds", "sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        """`bounds` ascend; above the last there is one more bucket, for everything."""
        self.bounds = tuple(bounds)
        self.sum = 0.0
        """Of all that was observed."""
        self._counts = [0] * (len(bounds) + 1)

    def observe(self, value: float) -> None:
        self._counts[bisect_left(self.bounds, value)] += 1
        self.sum += value

    @property
    def cumulative(self) -> tuple[int, ...]:
        """How many were observed of at most each bound, and last in all."""
        return tuple(accumulate(self._counts))
