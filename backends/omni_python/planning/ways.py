"""When a request is where: its way through the stages, from its arrival on."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from statistics import NormalDist

from omni_python.planning.costs import Costs, StageCost
from omni_python.planning.queues import Station
from omni_python.planning.sharing import Stretch
from omni_python.planning.spread import Mixture, Part, Spread

_KEPT = 2 / 3
"""What is left of the variance of the requests at once in their mean over one stay: the autocovariance of M/D/infinity
falls linearly to 0 over a stay."""

_HARDLY = 1e-3
_NORMAL = NormalDist()


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
        station, source = stations[name], stage.streams_from
        ready = latest(found[before].end for before in stage.after)
        if source is not None:
            ready = latest([ready, found[source].first.plus(stations[source].later(stage.needs - 1))])
        if stage.kind == "loop":
            first, end = _through_loop(ready, stage, station, costs.feeder(name))
            last = Mixture().plus(station.step)
        else:
            last = _through_queue(name, station, slower[name])
            later = last.moments().repeated(stage.steps - 1)
            first, end = ready.plus(last.by_some(stage.share)), ready.plus(last.plus(later).by_some(stage.share))
        if source is not None:  # it cannot end before its source
            ended = found[source].end.plus(last.by_some(stage.share))
            end = last_of_both(end if stage.kind == "loop" else first, ended, ready.moments().variance)
        found[name] = Way(ready, first, end)
    return found


def _through_queue(name: str, station: Station, slower: Stretch) -> Mixture:
    """Those who wait are told apart: they find more than others on the same device next."""
    step = _unlike(station.first, slower)
    if station.delayed < _HARDLY:
        return Mixture().plus(station.wait.plus(step))
    waited = station.wait.of_those(station.delayed).plus(step)
    return Mixture((Part(1 - station.delayed, step), Part(station.delayed, waited, name)))


def _through_loop(ready: Mixture, stage: StageCost, station: Station, feeder: str | None) -> tuple[Mixture, Mixture]:
    """To the first step's end, and to the last's. A request that waited at the queue that feeds the loop, on the same
    device, came there behind others: the loop has been slowed by that queue for some time, and has them to begin with,
    too. One that did not wait finds what everybody finds."""
    later = _later(stage, station)
    first: list[Part] = []
    end: list[Part] = []
    for part in ready.parts:
        found = station.fed if part.waited == feeder else None
        once = found or station.wait.plus(station.first)
        for times, time in ((first, once), (end, once.plus(later))):
            times += Mixture((part,)).plus(Mixture().plus(time).by_some(stage.share)).parts
    return Mixture(tuple(first)), Mixture(tuple(end))


def latest(times: Iterable[Mixture]) -> Mixture:
    return max(times, default=Mixture(), key=lambda time: time.mean)


def last_of_both(one: Mixture, other: Mixture, common: float) -> Mixture:
    """The later of two times, each of which is now and then: the moments are those of the greater of two normal times
    (Clark 1961) with `common` variance, the shape is that of the one that is later on average."""
    late, early = (one, other) if one.mean >= other.mean else (other, one)
    first, second = late.moments(), early.moments()
    apart = first.variance + second.variance - 2 * min(common, first.variance, second.variance)
    if apart <= 0:
        return late
    deviation = math.sqrt(apart)
    ahead = (first.mean - second.mean) / deviation
    below, density = _NORMAL.cdf(ahead), _NORMAL.pdf(ahead)
    mean = first.mean * below + second.mean * (1 - below) + deviation * density
    square = (first.mean**2 + first.variance) * below + (second.mean**2 + second.variance) * (1 - below)
    variance = square + (first.mean + second.mean) * deviation * density - mean**2
    narrower = variance / first.variance if first.variance else 1.0
    return Mixture(
        tuple(
            part._replace(
                time=Spread(
                    part.time.mean + mean - first.mean,
                    part.time.variance * narrower,
                    part.time.third * narrower**1.5,
                )
            )
            for part in late.parts
        )
    )


def overlap(mine: Way, theirs: Way) -> float:
    """The share of a request's time in a stage in which it is in the other, too."""
    stay = mine.end.mean - mine.ready.mean
    both = min(mine.end.mean, theirs.end.mean) - max(mine.ready.mean, theirs.ready.mean)
    return max(0.0, both) / stay if stay > 0 else 0.0


def _unlike(step: Spread, slower: Stretch) -> Spread:
    """A step's time, with what it finds on its device."""
    luck = Spread.gamma(step.mean, slower.luck * (step.mean**2 + step.variance))
    return Spread(step.mean, step.variance + luck.variance, step.third + luck.third)


def _later(stage: StageCost, station: Station) -> Spread:
    """In a loop, from the first step's end to the last's."""
    mean, variance, _ = station.later(stage.steps - 1, kept=_KEPT)
    length = stage.steps * stage.steps_cv * station.step.mean
    return Spread.gamma(mean, variance + length**2)
