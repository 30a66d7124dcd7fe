"""A random time, as far as sums of such times need it."""

from __future__ import annotations

from statistics import NormalDist
from typing import NamedTuple

_SKEWED = 1e-3
_MOST_PARTS = 32
_FAR = 50.0
"""In standard deviations, beyond every percentile."""

_HALVINGS = 40


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

    def share_below(self, time: float) -> float:
        """The probability of less, by a Pearson distribution of type III (a gamma distribution, moved) with these
        moments, in the approximation of Wilson and Hilferty (1931)."""
        if self.variance <= 0:
            return float(time >= self.mean)
        deviation = self.variance**0.5
        skew, z = self.third / deviation**3, (time - self.mean) / deviation
        if abs(skew) >= _SKEWED:
            z = (max(0.0, 1 + skew * z / 2) ** (1 / 3) - 1 + skew**2 / 36) * 6 / skew
        return NormalDist().cdf(z)


class Mixture(NamedTuple):
    """A random time that is one of several, with their probabilities."""

    parts: tuple[tuple[float, Spread], ...] = ((1.0, Spread(0.0)),)

    @property
    def mean(self) -> float:
        return sum(chance * part.mean for chance, part in self.parts)

    def moments(self) -> Spread:
        """As one time."""
        mean = self.mean
        variance = third = 0.0
        for chance, part in self.parts:
            off = part.mean - mean
            variance += chance * (part.variance + off**2)
            third += chance * (part.third + 3 * off * part.variance + off**3)
        return Spread(mean, variance, third)

    def plus(self, other: Spread) -> Mixture:
        """The sum with a time that knows nothing of it."""
        return Mixture(tuple((chance, part.plus(other)) for chance, part in self.parts))

    def plus_by_some(self, share: float, other: Spread) -> Mixture:
        """The same for those who need it, with the probability `share`; for the others, as it is."""
        if share >= 1:
            return self.plus(other)
        parts = [
            *((chance * (1 - share), part) for chance, part in self.parts),
            *((chance * share, part.plus(other)) for chance, part in self.parts),
        ]
        found = Mixture(tuple(parts))
        return found if len(parts) <= _MOST_PARTS else Mixture(((1.0, found.moments()),))

    def quantile(self, percentile: float) -> float:
        least = 0.0
        most = max(part.mean + _FAR * part.variance**0.5 for _, part in self.parts)
        for _ in range(_HALVINGS):
            time = (least + most) / 2
            below = sum(chance * part.share_below(time) for chance, part in self.parts)
            least, most = (time, most) if below < percentile / 100 else (least, time)
        return most
