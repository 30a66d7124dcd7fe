"""A random time, as far as sums of such times need it."""

from __future__ import annotations

from collections.abc import Sequence
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

    def repeated(self, times: float) -> Spread:
        """The sum of so many that know nothing of each other."""
        return Spread(times * self.mean, times * self.variance, times * self.third)

    def of_those(self, share: float) -> Spread:
        """The time of those who need it, where it is none for all but this share."""
        first, square = self.mean, self.variance + self.mean**2
        cube = self.third + 3 * self.mean * self.variance + self.mean**3
        return Spread.of_moments(first / share, square / share, cube / share)

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


class Part(NamedTuple):
    """One of a mixture's times, with its probability. `waited` names the stage at which such a request had to wait;
    so many `others` came with it out of the last loop (None: none, and the loop was idle)."""

    chance: float
    time: Spread
    waited: str = ""
    others: float | None = None


class Mixture(NamedTuple):
    """A random time that is one of several."""

    parts: tuple[Part, ...] = (Part(1.0, Spread(0.0)),)

    @property
    def mean(self) -> float:
        return sum(part.chance * part.time.mean for part in self.parts)

    def moments(self) -> Spread:
        """As one time."""
        mean = self.mean
        variance = third = 0.0
        for chance, time, *_ in self.parts:
            off = time.mean - mean
            variance += chance * (time.variance + off**2)
            third += chance * (time.third + 3 * off * time.variance + off**3)
        return Spread(mean, variance, third)

    def by_some(self, share: float) -> Mixture:
        """The time of one who needs it with the probability `share`, and else none."""
        if share >= 1:
            return self
        needed = (part._replace(chance=part.chance * share) for part in self.parts)
        return Mixture((Part(1 - share, Spread(0.0)), *needed))

    def plus(self, other: Spread | Mixture) -> Mixture:
        """The sum with a time that knows nothing of it; who waited for both waited for the latter."""
        latter = other.parts if isinstance(other, Mixture) else (Part(1.0, other),)
        sums = tuple(
            Part(one.chance * two.chance, one.time.plus(two.time), two.waited or one.waited)
            for one in self.parts
            for two in latter
        )
        return Mixture(sums if len(sums) <= _MOST_PARTS else _together(sums))

    def quantile(self, percentile: float) -> float:
        least = 0.0
        most = max(part.time.mean + _FAR * part.time.variance**0.5 for part in self.parts)
        for _ in range(_HALVINGS):
            time = (least + most) / 2
            below = sum(part.chance * part.time.share_below(time) for part in self.parts)
            least, most = (time, most) if below < percentile / 100 else (least, time)
        return most


def _together(parts: Sequence[Part]) -> tuple[Part, ...]:
    """Those that waited at the same stage as one, with their moments."""
    found = []
    for waited in dict.fromkeys(part.waited for part in parts):
        alike = [part for part in parts if part.waited == waited]
        whole = sum(part.chance for part in alike)
        of_them = Mixture(tuple(part._replace(chance=part.chance / whole) for part in alike))
        found.append(Part(whole, of_them.moments(), waited))
    return tuple(found)
