"""How much longer steps take that share a device."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple


class Stretch(NamedTuple):
    """By which factor steps take longer: `steady` where one follows the other, for whom the mean of what they get
    counts; `single` for those that come now and then, each with what it finds, and that factor's variance."""

    steady: float = 1.0
    single: float = 1.0
    variance: float = 0.0

    @property
    def luck(self) -> float:
        """The variance of `single` by its square."""
        return self.variance / self.single**2


def stretch(cores: float, others: Iterable[float]) -> Stretch:
    """Where each of `others` computes for that share of the time, independently. With n of them beside it, a step gets
    min(1, cores / (n + 1)) of a core (processor sharing)."""
    chances = [1.0]
    for share in others:
        busy = min(1.0, share)
        chances = [
            (chances[n] * (1 - busy) if n < len(chances) else 0.0) + (chances[n - 1] * busy if n else 0.0)
            for n in range(len(chances) + 1)
        ]
    factors = [max(1.0, (n + 1) / cores) for n in range(len(chances))]
    steady = 1 / sum(chance / factor for chance, factor in zip(chances, factors, strict=True))
    single = sum(chance * factor for chance, factor in zip(chances, factors, strict=True))
    square = sum(chance * factor**2 for chance, factor in zip(chances, factors, strict=True))
    return Stretch(steady, single, max(0.0, square - single**2))
