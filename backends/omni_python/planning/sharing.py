"""How much longer steps take that share a device."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

_RARE = 1e-6


class Stretch(NamedTuple):
    """By which factor steps take longer: `steady` where one follows the other, for whom the mean of what they get
    counts; `single` for those that come now and then, each with what it finds, and that factor's variance. `levels` are
    the factors that there are, with their shares of the time; one is there for some `lasting` seconds. `fed` is the
    probability at each level that who feeds the stage (see `Beside`) computes."""

    steady: float = 1.0
    single: float = 1.0
    variance: float = 0.0
    levels: tuple[tuple[float, float], ...] = ((1.0, 1.0),)
    lasting: float = 0.0
    fed: tuple[float, ...] = (0.0,)

    @property
    def luck(self) -> float:
        """The variance of `single` by its square."""
        return self.variance / self.single**2


class Beside(NamedTuple):
    """Another who computes on the device, for that share of the time. Of whether it does now, exp(-t / lasting) is
    known still t seconds later. One may feed the stage that it is beside: what it computes goes there next."""

    share: float
    lasting: float = 0.0
    feeds: bool = False


def stretch(cores: float, others: Sequence[Beside]) -> Stretch:
    """Where each of `others` computes independently. With n of them beside it, a step gets min(1, cores / (n + 1)) of a
    core (processor sharing)."""
    chances = _how_many(others)
    factors = [max(1.0, (n + 1) / cores) for n in range(len(chances))]
    steady = 1 / sum(chance / factor for chance, factor in zip(chances, factors, strict=True))
    single = sum(chance * factor for chance, factor in zip(chances, factors, strict=True))
    square = sum(chance * factor**2 for chance, factor in zip(chances, factors, strict=True))
    feeder = next((other for other in others if other.feeds), Beside(0.0))
    feeding = _how_many([other._replace(share=1.0) if other is feeder else other for other in others])
    levels: dict[float, float] = {}
    fed: dict[float, float] = {}
    for factor, chance, with_it in zip(factors, chances, feeding, strict=True):
        if chance > _RARE:
            levels[factor] = levels.get(factor, 0.0) + chance
            fed[factor] = fed.get(factor, 0.0) + min(1.0, feeder.share) * with_it
    whole = sum(levels.values())
    return Stretch(
        steady,
        single,
        max(0.0, square - single**2),
        tuple((factor, chance / whole) for factor, chance in levels.items()),
        _lasting(others),
        tuple(fed[factor] / chance for factor, chance in levels.items()),
    )


def _how_many(others: Sequence[Beside]) -> list[float]:
    """The probabilities of 0 and more of them at once."""
    chances = [1.0]
    for other in others:
        busy = min(1.0, other.share)
        chances = [
            (chances[n] * (1 - busy) if n < len(chances) else 0.0) + (chances[n - 1] * busy if n else 0.0)
            for n in range(len(chances) + 1)
        ]
    return chances


def _lasting(others: Sequence[Beside]) -> float:
    """The mean of theirs; each counts by the variance that it brings."""
    weights = [min(1.0, other.share) * (1 - min(1.0, other.share)) for other in others]
    times = sum(weight * other.lasting for weight, other in zip(weights, others, strict=True))
    return times / sum(weights) if sum(weights) else 0.0
