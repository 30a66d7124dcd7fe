"""A random time, as far as sums of such times need it."""

from __future__ import annotations

from statistics import NormalDist
from typing import NamedTuple


class Spread(NamedTuple):
    """The mean (seconds), the variance, and the third central moment."""

    mean: float
    variance: float = 0.0
    third: float = 0.0

    @classmethod
    def of_moments(cls, first: float, second: float, third: float) -> Spread:
        """From the means of the time, its square and its cube."""
        return cls(first, max(0.0, second - first**2), third - 3 * first * second + 2 * first**3)

    @classmethod
    def gamma(cls, mean: float, variance: float) -> Spread:
        """As skewed as a gamma distribution."""
        return cls(mean, variance, 2 * variance**2 / mean if mean else 0.0)

    def plus(self, other: Spread) -> Spread:
        """The sum of two times that know nothing of each other."""
        return Spread(self.mean + other.mean, self.variance + other.variance, self.third + other.third)

    def times(self, factor: float) -> Spread:
        return Spread(self.mean * factor, self.variance * factor**2, self.third * factor**3)

    def by_some(self, share: float) -> Spread:
        """The time of one who needs it with the probability `share`, and else none."""
        mean, variance, third = self
        rest = share * (1 - share)
        return Spread(
            share * mean,
            share * variance + rest * mean**2,
            share * third + 3 * rest * mean * variance + rest * (1 - 2 * share) * mean**3,
        )

    def quantile(self, percentile: float) -> float:
        """Of the Pearson distribution of type III (a gamma distribution, moved) with these moments, by the
        approximation of Wilson and Hilferty (1931)."""
        z = NormalDist().inv_cdf(percentile / 100)
        if self.variance <= 0:
            return self.mean
        deviation = self.variance**0.5
        skew = self.third / deviation**3
        if abs(skew) < 1e-3:
            return self.mean + z * deviation
        return self.mean + deviation * 2 / skew * (max(0.0, 1 + skew * z / 6 - skew**2 / 36) ** 3 - 1)
