"""What all stages do at a load: how busy each is makes the others slower, and that makes them busier."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from omni_python.planning.capacity import at_once, other_work
from omni_python.planning.costs import Costs, StageCost
from omni_python.planning.queues import Saturated, Station, loop_station, queue_station, ticked_station
from omni_python.planning.sharing import Beside, Stretch, stretch
from omni_python.planning.ways import Way, overlap, ways

_ROUNDS = 200
_CLOSE = 1e-4
_NUDGE = 0.05


@dataclass(frozen=True)
class Balance:
    """By stage: what it does, by what its steps are longer, and when a request is there."""

    stations: dict[str, Station]
    slower: dict[str, Stretch]
    ways: dict[str, Way]


def factor(stage: StageCost, slower: Stretch) -> float:
    """By which a stage's steps are longer: those of a loop follow each other, those of a queue come now and then."""
    return slower.steady if stage.kind == "loop" else slower.single


def balance(costs: Costs, rate: float, copies: Mapping[str, int]) -> Balance:
    """The fixed point, and how it sways about it. Raises `Saturated`.

    When more requests than usual are in a loop, its steps are longer for all that they do beside it, too: by as much as
    they would be at the higher rate that has so many there at all times.
    """
    found = settle(costs, rate, copies)
    try:
        other = settle(costs, rate * (1 + _NUDGE), copies)
    except Saturated:
        other = settle(costs, rate * (1 - _NUDGE), copies)
    slopes = {
        name: (other.stations[name].step.mean - station.step.mean) / (other.stations[name].batch - station.batch)
        for name, station in found.stations.items()
        if costs.stages[name].kind == "loop" and abs(other.stations[name].batch - station.batch) > _CLOSE
    }
    return settle(costs, rate, copies, slopes)


def settle(costs: Costs, rate: float, copies: Mapping[str, int], slopes: Mapping[str, float] | None = None) -> Balance:
    """The fixed point alone. `slopes` are the seconds by which a loop's step is longer with one request more, where
    that is more than its own cost. Raises `Saturated`."""
    slower = dict.fromkeys(costs.stages, Stretch())
    quiet: dict[str, Stretch] = {}
    others: dict[str, list[Beside]] = {}
    for _ in range(_ROUNDS):
        stations = _stations(costs, rate, copies, slower, quiet, slopes or {})
        found = Balance(stations, slower, ways(costs, stations, slower))
        before, slower = slower, {}
        for name, stage in costs.stages.items():
            now = beside(costs, name, found, rate, copies)
            others[name] = _between(others.get(name, now), now)
            slower[name] = stretch(costs.devices[stage.device].cores, others[name])
            if stage.kind == "loop" and any(costs.stages[one].device == stage.device for one in costs.streams_to(name)):
                quiet[name] = stretch(costs.devices[stage.device].cores, _beside_idle(costs, name, found, rate, copies))
        if all(abs(slower[name].steady - before[name].steady) < _CLOSE * before[name].steady for name in slower):
            break
    return found


def _stations(
    costs: Costs,
    rate: float,
    copies: Mapping[str, int],
    slower: Mapping[str, Stretch],
    quiet: Mapping[str, Stretch],
    slopes: Mapping[str, float],
) -> dict[str, Station]:
    stations: dict[str, Station] = {}
    for name, stage in costs.stages.items():
        servers, reached, longer = copies[stage.device] * stage.workers, rate * stage.share, factor(stage, slower[name])
        fixed, per_row, largest = stage.fixed * longer, stage.per_row * longer, stage.max_batch
        if stage.kind == "loop":
            first, steps, cv = stage.first * longer, stage.steps, stage.steps_cv
            around = slower[name], quiet.get(name)
            station = loop_station(reached, first, fixed, per_row, steps, largest, servers, cv, *around)
            if name in slopes:
                fixed, per_row = _tilted(fixed, per_row, station.batch, slopes[name] * (1 - reached / servers * first))
                tilted = loop_station(reached, first, fixed, per_row, steps, largest, servers, cv, *around)
                station = replace(station, step=station.step._replace(variance=tilted.step.variance))
            stations[name] = station
        elif stage.streams_from is not None:
            tick = stations[stage.streams_from].step.mean
            stations[name] = ticked_station(reached * stage.steps, fixed, per_row, largest, servers, tick)
        else:
            stations[name] = queue_station(reached * stage.steps, fixed, per_row, largest, servers, stage.cv)
    return stations


def _tilted(fixed: float, per_row: float, batch: float, slope: float) -> tuple[float, float]:
    """The line with this slope, not below what it had, through the same point."""
    step = fixed + per_row * batch
    slope = min(max(slope, per_row), step / batch)
    return step - slope * batch, slope


def _between(old: list[Beside], new: list[Beside]) -> list[Beside]:
    return [
        now._replace(share=(before.share + now.share) / 2, lasting=(before.lasting + now.lasting) / 2)
        for before, now in zip(old, new, strict=True)
    ]


def _lasting(stage: StageCost, found: Station, rate: float) -> float:
    """Seconds, of whether a stage of which one copy gets `rate` requests computes: its utilisation by the rate at which
    it begins to, which is the relaxation of a renewal process that is now on, now off. A queue begins with each batch,
    a loop with a request."""
    return found.step.mean if stage.kind == "queue" else found.utilisation / (rate * stage.share)


def beside(
    costs: Costs, name: str, found: Balance, rate: float, copies: Mapping[str, int], *, begins: bool = False
) -> list[Beside]:
    """Who else computes on a copy of the stage's device: for the same request, too, where a stream joins two stages.
    For a request that `begins` in the stage, what streams to it is at work, and what it streams to is not yet, or left
    out where it is the work of its own steps."""
    stage = costs.stages[name]
    one = rate / copies[stage.device]
    others = at_once(stage, found.stations[name].utilisation, found.stations[name].step.mean)[1:]
    others += other_work(costs.devices[stage.device], one)
    feeder = costs.feeder(name)
    for other, beside_it in costs.on(stage.device):
        if other == name:
            continue
        station = found.stations[other]
        use = station.utilisation
        before, after = name in costs.streams_to(other), other in costs.streams_to(name)
        its_own = beside_it.streams_from == name and beside_it.kind == "queue" and costs.share_core(name, other)
        if begins and its_own:
            continue
        if before or (after and not begins):
            theirs = found.ways[other]
            stay, work = theirs.end.mean - theirs.ready.mean, beside_it.steps * found.stations[other].step.mean
            own = overlap(found.ways[name], theirs) * min(1.0, work / stay if stay > 0 else 0.0)
            use = 1.0 if begins and beside_it.kind == "loop" else 1 - (1 - use) * (1 - own)
        first, *rest = at_once(beside_it, use, _lasting(beside_it, station, one))
        others += [first._replace(feeds=other == feeder), *rest]
    return others


def _beside_idle(costs: Costs, name: str, found: Balance, rate: float, copies: Mapping[str, int]) -> list[Beside]:
    """Who computes beside a loop when a request finds it idle: of what it streams to, what is left of earlier ones."""
    stage = costs.stages[name]
    met = found.stations[name].met
    others = other_work(costs.devices[stage.device], rate / copies[stage.device])
    for other, beside_it in costs.on(stage.device):
        if other == name:
            continue
        station = found.stations[other]
        use = station.utilisation
        if other in costs.streams_to(name) and met < 1:
            source = beside_it if beside_it.kind == "loop" else costs.stages[beside_it.streams_from or other]
            loop = station if source is beside_it else found.stations[beside_it.streams_from or other]
            if source.kind == "loop" and source is not stage:
                left = max(0.0, (loop.met - met) / (1 - met))
                use = left if source is beside_it else use * left / max(loop.utilisation, 1e-9)
        others += at_once(beside_it, min(1.0, use), _lasting(beside_it, station, rate / copies[stage.device]))
    return others
