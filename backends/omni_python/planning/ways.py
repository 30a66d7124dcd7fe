"""When a request is where: its way through the stages, from its arrival on."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from omni_python.planning.costs import Costs, StageCost
from omni_python.planning.queues import Station
from omni_python.planning.sharing import Stretch
from omni_python.planning.spread import Mixture, Spread

_KEPT = 2 / 3
"""What is left of the variance of the requests at once in their mean over one stay: the autocovariance of M/D/infinity
falls linearly to 0 over a stay."""


@dataclass(frozen=True)
class Way:
    """When a request can begin in a stage, has its first output, and its last."""

    ready: Mixture
    first: Mixture
    end: Mixture


def ways(costs: Costs, stations: Mapping[str, Station], slower: Mapping[str, Stretch]) -> dict[str, Way]:
    """Of what a stage waits for, that with the highest mean is taken to be always the last."""
    found: dict[str, Way] = {}
    for name, stage in costs.stages.items():
        station, source, share = stations[name], stage.streams_from, stage.share
        ready = latest(found[before].end for before in stage.after)
        if source is not None:
            ready = latest([ready, found[source].first.plus(stations[source].later(stage.needs - 1))])
        once = station.wait.plus(station.first if stage.kind == "loop" else _unlike(station.first, slower[name]))
        first = ready.plus_by_some(share, once)
        end = ready.plus_by_some(share, once.plus(_rest(stage, station, once)))
        if source is not None:  # it cannot end before its source
            last = station.step if stage.kind == "loop" else once
            end = latest([end if stage.kind == "loop" else first, found[source].end.plus_by_some(share, last)])
        found[name] = Way(ready, first, end)
    return found


def latest(times: Iterable[Mixture]) -> Mixture:
    return max(times, default=Mixture(), key=lambda time: time.mean)


def overlap(mine: Way, theirs: Way) -> float:
    """The share of a request's time in a stage in which it is in the other, too."""
    stay = mine.end.mean - mine.ready.mean
    both = min(mine.end.mean, theirs.end.mean) - max(mine.ready.mean, theirs.ready.mean)
    return max(0.0, both) / stay if stay > 0 else 0.0


def _unlike(step: Spread, slower: Stretch) -> Spread:
    """A step's time, with what it finds on its device."""
    luck = Spread.gamma(step.mean, slower.luck * (step.mean**2 + step.variance))
    return Spread(step.mean, step.variance + luck.variance, step.third + luck.third)


def _rest(stage: StageCost, station: Station, once: Spread) -> Spread:
    """From the first step's end to the last's."""
    later = stage.steps - 1
    if stage.kind == "queue":
        return Spread(later * once.mean, later * once.variance, later * once.third)
    mean, variance, _ = station.later(later, kept=_KEPT)
    length = stage.steps * stage.steps_cv * station.step.mean
    return Spread.gamma(mean, variance + length**2)
