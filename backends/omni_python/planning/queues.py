"""How long requests wait for a stage: the formulas.

All take Poisson arrivals. Times are seconds, rates a second.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from omni_python.planning.iterations import Company, poisson, to_begin
from omni_python.planning.sharing import Stretch
from omni_python.planning.spread import Mixture, Spread
from omni_python.proto.errors import InvalidArgument

_LARGEST_STATE = 1500
_TAIL = 1e-6
"""The probability of states that are left out."""

_CELLS = 16
"""Of a tick, in the grid of what is left over."""

_LONGEST_BACKLOG = 200
"""In ticks."""

_MOMENTS = 16
"""In which a step is looked at, for what an arrival finds of it."""


class Saturated(InvalidArgument):
    """More comes than can be computed, or so nearly that the formulas find no balance."""

    def __init__(self) -> None:
        super().__init__("the load is more than the pipeline can do, or nearly: give it more copies, or less to do")


@dataclass(frozen=True)
class Station:
    """What a stage does at a load. `utilisation` is the share of the time in which a server of it computes, `batch` the
    mean of the requests that it computes at once; a request `wait`s for its first step, which takes `first`. Each later
    step comes after `step`, whose variance is that of a request's mean step; single ones vary by `jitter` beside it.
    The first of these comes `join` later: the new ones miss the step of the others that follows theirs. The share
    `delayed` waits at a queue at all; to the end of the first step in a loop it is `fed` for those who come while the
    stage computes that feeds it."""

    utilisation: float
    batch: float
    wait: Spread
    first: Spread
    step: Spread
    jitter: float = 0.0
    join: float = 0.0
    delayed: float = 0.0
    met: float = 0.0
    fed: Spread | None = None
    company: tuple[Company, ...] = ()
    fed_company: tuple[Company, ...] = ()

    def later(self, steps: float, kept: float = 1.0) -> Spread:
        """The time of `steps` steps, over which the mean step keeps a part of its variance."""
        mean, variance, _ = self.step
        return Spread.gamma(
            steps * mean + min(steps, 1.0) * self.join, steps**2 * variance * kept + steps * self.jitter
        )


@lru_cache(maxsize=4096)
def queue_station(rate: float, fixed: float, per_row: float, largest: int, servers: int, cv: float) -> Station:
    """A queue of `servers` (workers, replicas), each of which takes up to `largest` of what waits when it is free.

    One server: Pollaczek and Khinchine's mean and Takacs' second moment for single requests; for batches the chain of
    the numbers left behind at the ends of steps (M/D^(1,K)/1, Bailey 1954, Neuts 1967), solved numerically, with the
    time for a batch as it is. Several: Erlang's C of all requests wait, as long as those who wait for one server at the
    same utilisation, divided by the number (Lee and Longton 1959; with `cv`, Allen and Cunneen). Raises `Saturated`.
    """
    one = rate / servers
    if one * (fixed / largest + per_row) >= 1:
        raise Saturated
    if largest == 1:
        time = fixed + per_row
        load = one * time
        second = (1 + cv**2) * time**2
        third = (1 + 3 * cv**2) * time**3
        mean = one * second / (2 * (1 - load))
        wait = Spread.gamma(mean, mean**2 + one * third / (3 * (1 - load)))
        once = Spread.gamma(time, (cv * time) ** 2)
        station = Station(load, 1.0, wait, once, once, delayed=load)
    else:
        station = _batches(one, fixed, per_row, largest, cv)
    if servers == 1:
        return station
    delayed = erlang_c(servers, servers * station.utilisation)
    waited = station.wait.of_those(station.delayed).times(1 / servers)
    return replace(station, wait=Mixture().plus(waited).by_some(delayed).moments(), delayed=delayed)


def erlang_c(servers: int, load: float) -> float:
    """The probability that all `servers` are busy when `load` of them are on average (Erlang 1917, M/M/c)."""
    if load <= 0:
        return 0.0
    blocking = 1.0
    for number in range(1, servers + 1):
        blocking = load * blocking / (number + load * blocking)
    return blocking / (1 - load / servers * (1 - blocking))


def _batches(rate: float, fixed: float, per_row: float, largest: int, cv: float) -> Station:
    full = rate * (fixed / largest + per_row)
    states = min(_LARGEST_STATE, largest + 24 + math.ceil(largest * math.log(_TAIL) / math.log(max(full, 0.05))))
    left = np.arange(states)
    taken = np.clip(left, 1, largest)
    time = fixed + per_row * taken
    behind = np.maximum(left - taken, 0)
    share = _stationary(rate, time, behind, states)
    idle = float(share[0]) / rate
    cycle = float(share @ time) + idle
    # What an arrival finds: a step of each kind, at each of its moments, and who came in it before.
    done = (np.arange(_MOMENTS) + 0.5) / _MOMENTS
    ahead = behind[:, None] + np.arange(states)
    batches = ahead // largest * (fixed + per_row * largest)
    mean = second = 0.0
    for part in done:
        waits = (1 - part) * time[:, None] + batches
        weight = (share * time / cycle / _MOMENTS)[:, None] * poisson(rate * part * time, states)
        mean += float((weight * waits).sum())
        second += float((weight * waits**2).sum())
    mean, second = mean * (1 + cv**2), second * (1 + cv**2) ** 2
    rows = float(share @ taken)
    service = float(share @ (taken * time)) / rows
    spread = float(share @ (taken * (time - service) ** 2)) / rows + (cv * service) ** 2
    once = Spread.gamma(service, spread)
    use = float(share @ time) / cycle
    return Station(use, rows, Spread.gamma(mean, second - mean**2), once, once, delayed=use)


def _stationary(rate: float, time: np.ndarray, behind: np.ndarray, states: int) -> np.ndarray:
    """The chain's distribution; what would lie beyond the last state lies in it."""
    came = poisson(rate * time, states)
    chain = np.zeros((states, states))
    for state in range(states):
        room = states - behind[state]
        chain[state, behind[state] :] = came[state, :room]
        chain[state, -1] += max(0.0, 1 - chain[state].sum())
    system = chain.T - np.eye(states)
    system[-1] = 1.0
    right = np.zeros(states)
    right[-1] = 1.0
    return np.maximum(np.linalg.solve(system, right), 0.0)


@lru_cache(maxsize=4096)
def loop_station(
    rate: float,
    first: float,
    fixed: float,
    per_row: float,
    steps: float,
    largest: int,
    servers: int,
    cv: float,
    slower: Stretch,
    quiet: Stretch | None = None,
) -> Station:
    """Continuous batching: each of `servers` keeps up to `largest` requests and computes all of them in every step,
    `fixed + running * per_row`, until each had `steps - 1`, after a first one of its own that takes `first`.

    The number of requests is a birth-death chain: with r of them one ends every `first + (steps - 1) (fixed / r +
    per_row)` seconds. That is a processor-sharing queue with a rate for each state, whose distribution depends on the
    mean of the steps alone (Kelly 1979). First steps hold all others up, as work of higher priority does: by
    rate * first^2 / 2 / ((1 - load of first steps) (1 - load)) (Cobham 1954), where fixed times, which more requests
    do not make longer, are no load. Requests go to the replica with the fewest: they are spread evenly. Then Little's
    law. `cv` is that of the steps. All times are as long as `slower`, the others on the device, makes them on average.
    Raises `Saturated`.
    """
    one = rate / servers
    free = 1 - one * first
    later = steps - 1
    if one * (first + later * (fixed / largest + per_row)) >= 1:
        raise Saturated
    if later == 0:
        return queue_station(rate, 0.0, first, 1, servers, 0.0)
    ends = np.array([0.0, *(1 / (first + later * (fixed / r + per_row)) for r in range(1, largest + 1))])
    chances = birth_death(rate, ends, largest, servers)
    numbers = np.arange(len(chances))
    present = float(chances @ numbers)
    waiting = float(chances @ np.maximum(numbers - largest * servers, 0))
    spread = float(chances @ (numbers - present) ** 2) / servers
    busy = float(chances @ np.minimum(numbers / servers, 1.0))
    all_busy = float(chances[servers:].sum())  # what an arrival finds, which goes to an idle one where there is one
    batch = (present - waiting) / servers / busy
    stay = (present - waiting) / rate
    iteration = (stay - first) / later
    slow = (per_row / free) ** 2 * spread
    # An iteration is a step and the first ones of those who came in the last, a Poisson number.
    jitter = iteration * one * first**2 / (1 - (one * first) ** 2) + slower.luck * iteration**2
    begins = to_begin(one, first, fixed + per_row * batch, all_busy, slower, slow / iteration**2, quiet)
    wait, begin, fed = begins.wait, begins.first, begins.fed
    held_up = one * first**2 / 2 / (free * (1 - one * (first + later * per_row)))
    step = max(fixed + per_row, (stay + held_up - begin.mean) / later)
    slot = waiting / rate * (1 + cv**2) / 2
    for_slot = Spread.gamma(slot, 2 * slot**2)
    return Station(
        busy,
        batch,
        wait.plus(for_slot),
        begin,
        Spread(step, slow),
        jitter,
        all_busy * iteration * free,
        met=all_busy,
        fed=None if fed is None else fed.plus(for_slot),
        company=tuple(one._replace(time=one.time.plus(for_slot)) for one in begins.company),
        fed_company=tuple(one._replace(time=one.time.plus(for_slot)) for one in begins.fed_company),
    )


@lru_cache(maxsize=4096)
def ticked_station(rate: float, fixed: float, per_row: float, largest: int, servers: int, tick: float) -> Station:
    """A queue whose work comes from a loop: all that the loop's step makes comes at its end, every `tick` seconds, a
    Poisson number of them; batches are of what came together. What is left over at the next tick follows Lindley's
    recursion (1952), computed on a grid. Raises `Saturated`.
    """
    mean = rate / servers * tick
    numbers = np.arange(max(8, math.ceil(mean + 10 * math.sqrt(mean))))
    chances = poisson(np.array([mean]), len(numbers))[0]
    whole, rest = numbers // largest, numbers % largest
    work = whole * (fixed + largest * per_row) + (rest > 0) * (fixed + rest * per_row)
    use = float(chances @ work) / tick
    if rate / servers * (fixed / largest + per_row) >= 1:
        raise Saturated
    if use >= 1:  # what is left over makes the batches larger than those of a tick
        return queue_station(rate, fixed, per_row, largest, servers, 0.0)
    backlog = _backlog(chances, work, tick)
    # Of all that comes in a tick, the i-th waits for i // largest batches before its own.
    place = np.array([chances[n + 1 :].sum() for n in numbers]) / mean
    before = numbers // largest * (fixed + largest * per_row)
    moments = [float(place @ before**power) for power in (1, 2, 3)]
    batches = float(chances @ (whole + (rest > 0)))
    squares = float(chances @ (whole * largest**2 + rest**2)) / mean
    once = Spread(fixed + per_row * squares)
    return Station(use, mean / batches, backlog.plus(Spread.of_moments(*moments)), once, once)


def _backlog(chances: np.ndarray, work: np.ndarray, tick: float) -> Spread:
    """Seconds of work left at a tick: W' = max(0, W + work - tick), from W = 0 until its mean stays."""
    grid = tick / _CELLS
    jumps = np.bincount(np.rint(work / grid).astype(int), weights=chances)
    if len(jumps) <= _CELLS + 1:
        return Spread(0.0)
    left, before = np.ones(1), -1.0
    times = np.arange(_LONGEST_BACKLOG * _CELLS) * grid
    while (mean := float(left @ times[: len(left)])) - before > 1e-5 * (mean + grid):
        before = mean
        moved = np.convolve(left, jumps)[: len(times)]
        done = _CELLS + 1
        left = np.concatenate(([moved[:done].sum()], moved[done:]))
        while len(left) > 1 and left[-1] < 1e-12:
            left = left[: max(1, len(left) - _CELLS)]
    return Spread.of_moments(*(float(left @ times[: len(left)] ** power) for power in (1, 2, 3)))


def birth_death(rate: float, ends: np.ndarray, largest: int, servers: int) -> np.ndarray:
    """The distribution of all requests of the replicas together."""
    chances = [1.0]
    top = 1.0
    for number in range(1, 200 * _LARGEST_STATE):
        each, more = divmod(number, servers)
        leaving = more * ends[min(each + 1, largest)] + (servers - more) * ends[min(each, largest)]
        chances.append(chances[-1] * rate / leaving)
        top = max(top, chances[-1])
        if top > 1e200:
            chances, top = [chance / 1e200 for chance in chances], top / 1e200
        if chances[-1] < top * 1e-9 and rate < leaving:
            break
    found = np.array(chances)
    return found / found.sum()
