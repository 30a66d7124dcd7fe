"""When the first output of a stream comes that two loops are behind: what the first piece of speech waits for.

The first steps in a loop depend on how many others are in it, and that hardly changes while they last: who finds many
has a long first step, long later ones, and a full vocoder. So all of them are computed for each number of others, and
the latency is a mixture over these. And requests do not come to the second loop one by one: those that had their first
step in the first one together come together, so that who waited there for others waits here for the same ones again.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from omni_python.planning.balance import Balance, beside
from omni_python.planning.costs import Costs
from omni_python.planning.iterations import poisson
from omni_python.planning.queues import Saturated, Station, birth_death, queue_station, ticked_station
from omni_python.planning.sharing import Beside, Stretch, stretch
from omni_python.planning.spread import Mixture, Part, Spread
from omni_python.planning.ways import latest

_CROWDS = 12
"""Numbers of others in a loop that are told apart, about equally likely ones."""

_LITTLE = 0.5
"""The share of a device up to which hardly anything is left over from one step to the next."""

_RARE = 1e-6


def first_output(costs: Costs, found: Balance, rate: float, copies: Mapping[str, int], name: str) -> Mixture:
    """From a request's arrival to the first output of a stage, at `rate` requests a second."""
    stage = costs.stages[name]
    source = stage.streams_from
    if source is None or stage.kind == "loop" or costs.stages[source].streams_from is None:
        return found.ways[name].first
    return _Stream(costs, found, rate, copies, source, name).first_output()


@dataclass(frozen=True)
class _Iterations:
    """Of a loop, by the number of others in it: seconds of the step of all of them (`step`), and of what the loop feeds
    on its own device meanwhile (`fed`, a variance of `fed_variance`); and how often that number is found (`chances`).
    A new one's first step takes `first`. Where all slots are taken a request waits `slot` for one (mean, and mean of
    the square, over those that find the highest number)."""

    first: float
    step: np.ndarray
    fed: np.ndarray
    fed_variance: np.ndarray
    chances: np.ndarray
    slot: tuple[float, float]

    @property
    def numbers(self) -> np.ndarray:
        return np.arange(len(self.step))

    @property
    def mean(self) -> float:
        return float(self.chances @ self.numbers)


class _Stream:
    """`loop` is fed by the stream of another one, and feeds `target`, a queue, with its own."""

    def __init__(
        self, costs: Costs, found: Balance, rate: float, copies: Mapping[str, int], loop: str, target: str
    ) -> None:
        self._costs, self._found, self._rate, self._copies = costs, found, rate, copies
        self._loop, self._target = loop, target
        self._stage, self._queue = costs.stages[loop], costs.stages[target]
        self._feeder = self._stage.streams_from or ""
        self._servers, feeders = copies[self._stage.device], copies[costs.stages[self._feeder].device]
        # Of those that are in one copy of the feeder, and of those that come to one of the loop.
        self._stay_together = 1.0 if feeders == self._servers else 1 / self._servers
        self._from_one = 1.0 if feeders == self._servers else 1 / feeders
        self._one = rate * self._stage.share / self._servers
        self._needs = round(self._queue.needs)

    def first_output(self) -> Mixture:
        around = stretch(self._costs.devices[self._stage.device].cores, self._beside(self._loop))
        iterations = self._iterations(around.steady)
        parts: list[Part] = []
        ready = self._ready()
        for others in dict.fromkeys(part.others for part in ready.parts):
            times = list(self._from_ready(iterations, around, others))
            for part in ready.parts:
                if part.others == others:
                    parts += (Part(part.chance * chance, part.time.plus(time)) for chance, time in times)
        return Mixture(tuple(parts))

    def _ready(self) -> Mixture:
        """When the loop can begin, told apart by how many others can, too."""
        station, feeder = self._found.stations[self._feeder], self._costs.feeder(self._feeder)
        if self._costs.stages[self._feeder].streams_from is not None:
            return self._found.ways[self._loop].ready
        later = station.later(self._stage.needs - 1)
        fed = station.fed_company or station.company
        streamed = Mixture(
            tuple(
                Part(part.chance * one.chance, part.time.plus(one.time).plus(later), part.waited, one.others)
                for part in self._found.ways[self._feeder].ready.parts
                for one in (fed if part.waited == feeder else station.company)
            )
        )
        return latest([*(self._found.ways[before].end for before in self._stage.after), streamed])

    def _beside(self, name: str) -> list[Beside]:
        return beside(self._costs, name, self._found, self._rate, self._copies, begins=True)

    def _iterations(self, longer: float) -> _Iterations:
        """All steps are `longer` by that factor than alone, and what the loop feeds takes its own time beside that:
        who shares a device evenly with one that has less to do is held up by all of that one's work, at most by as much
        as its own."""
        stage, numbers = self._stage, np.arange(self._stage.max_batch + 1)
        first, step = longer * stage.first, longer * (stage.fixed + stage.per_row * numbers)
        step[0] = 0.0
        fed, variance = self._fed_work(numbers)
        fed = np.minimum(fed, step / max(_RARE, 1 - 2 * self._one * first))
        ends = np.array([0.0, *(1 / (first + (stage.steps - 1) * (step[1:] + fed[1:]) / numbers[1:]))])
        chances, slot = np.zeros(len(numbers)), np.zeros(2)
        for there, chance in enumerate(birth_death(self._one * self._servers, ends, stage.max_batch, self._servers)):
            number = there // self._servers
            chances[min(number, stage.max_batch)] += chance
            if number >= stage.max_batch:
                wait = (number - stage.max_batch + 1) / ends[-1]
                slot += chance * np.array([wait, wait**2])
        slot /= max(chances[-1], _RARE)
        return _Iterations(first, step, fed, variance, chances, (float(slot[0]), float(slot[1])))

    def _fed_work(self, numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Seconds of the queue in an iteration of so many, where it shares a core with the loop. Each
        request gives it a piece now and then, regularly, so that over some iterations only the batches vary."""
        queue = self._queue
        if not self._costs.share_core(self._loop, self._target):
            return np.zeros(len(numbers)), np.zeros(len(numbers))
        means = self._pieces_per_step * numbers
        pieces = np.arange(math.ceil(means[-1] + 10 * math.sqrt(means[-1]) + 8))
        chances = poisson(np.maximum(means, _RARE), len(pieces))
        batches = np.ceil(pieces / queue.max_batch)
        varied = chances @ batches**2 - (chances @ batches) ** 2
        return chances @ (batches * queue.fixed + pieces * queue.per_row), queue.fixed**2 * varied

    @property
    def _pieces_per_step(self) -> float:
        return self._queue.steps * self._queue.share / self._stage.steps

    def _found_by(self, chances: np.ndarray, others: float | None) -> np.ndarray:
        """How many there are for one who found the feeder idle (`others` is None), or busy: all who are in the feeder
        are in the loop, too, and those in the loop who are young enough are still there."""
        feeding, there = self._found.ways[self._feeder], self._found.ways[self._loop]
        stay = there.end.mean - there.ready.mean
        young = min(1.0, (feeding.end.mean - feeding.first.mean) / stay) if stay > 0 else 0.0
        idle = chances * (1 - young * self._from_one) ** np.arange(len(chances))
        found = idle if others is None else chances - idle
        whole = float(found.sum())
        return found / whole if whole > _RARE else chances

    def _from_ready(
        self, iterations: _Iterations, around: Stretch, others: float | None
    ) -> Iterator[tuple[float, Spread]]:
        """Times from the moment when a request can begin in the loop to the first output of the target, with their
        chances, for one that comes with so many others."""
        chances = self._found_by(iterations.chances, others)
        with_it = (others or 0.0) * self._stay_together
        means, variances = self._until_needed(iterations, around, with_it)
        free = 1 - self._one * iterations.first
        group = np.minimum((np.cumsum(chances) - chances / 2) * _CROWDS, _CROWDS - 1).astype(int)
        for number in range(_CROWDS):
            mine = chances * (group == number)
            chance = float(mine.sum())
            if chance < _RARE:
                continue
            mine /= chance
            time = float(mine @ means)
            spread = float(mine @ (variances + (means - time) ** 2))
            there = float(mine @ self._drifted(iterations.numbers, iterations.mean, self._needs))
            tick = float(np.interp(there + 1, iterations.numbers, iterations.step + iterations.fed)) / free
            # The piece of a first step does not come with those of the others' steps.
            piece = self._piece(there, tick, with_it) if self._needs == 1 else self._piece(there + 1, tick)
            yield chance, Spread.gamma(time, spread).plus(piece)

    def _drifted(self, numbers: np.ndarray, mean: float, steps: float) -> np.ndarray:
        """What becomes of the number of others after some steps: nearer to the mean the more of them have left."""
        return mean + (numbers - mean) * (1 - min(steps / self._stage.steps, 1.0))

    def _until_needed(self, iterations: _Iterations, around: Stretch, with_it: float) -> tuple[np.ndarray, np.ndarray]:
        """Means and variances of the time to the end of the step that the target needs, by the number of others.

        A request waits for the end of an iteration, has its first step beside those of all who came in it, and then an
        iteration for each step, with the first steps of those who came in the one before.
        """
        numbers, first, rate = iterations.numbers, iterations.first, self._one
        free = 1 - rate * first
        length = (iterations.step + iterations.fed) / free
        varied = rate * length * first**2 / (1 - (rate * first) ** 2) + iterations.fed_variance
        # The iteration that an arrival finds is the likelier the longer it is.
        long = length + np.divide(varied, length, out=np.zeros_like(length), where=length > 0)
        wait, waits = long / 2, np.where(numbers > 0, (length**2 + 3 * varied) / 3 - long**2 / 4, 0.0)
        also = self._come(long, long)
        last = first * (1 + with_it + also) + iterations.step + iterations.fed
        total = wait + last
        if self._needs == 1:  # the others' step comes after its own first one
            total = total - iterations.step - np.maximum(0.0, iterations.fed - first)
        for step in range(2, self._needs + 1):
            new = self._come(last, last) if step == 2 else rate * last
            there = self._drifted(numbers, iterations.mean, step)
            grown = np.interp(there + with_it + 1, numbers, iterations.step)
            last = first * new + grown + np.interp(there, numbers, iterations.fed)
            total = total + last
        each = (first + around.steady * self._stage.per_row * self._needs / 2) / free
        variance = waits + rate * total * each**2 + first**2 * (also + with_it * (1 - self._stay_together))
        variance += self._needs * iterations.fed_variance + total**2 * around.luck * _kept(total, around.lasting)
        total[-1] += iterations.slot[0]
        variance[-1] += max(0.0, iterations.slot[1] - iterations.slot[0] ** 2)
        return total, variance

    def _come(self, length: np.ndarray, around: np.ndarray) -> np.ndarray:
        """How many come in an iteration in which others came already: from the same copy of the feeder only at its next
        step, half of which lies within the time on average."""
        tick = self._found.stations[self._feeder].step.mean
        left = np.maximum(0.0, length - tick) * np.divide(
            np.maximum(0.0, length - tick), around, out=np.zeros_like(length), where=around > 0
        )
        rate: np.ndarray = self._one * (self._from_one * left + (1 - self._from_one) * length)
        return rate

    def _piece(self, there: float, tick: float, alone_with: float | None = None) -> Spread:
        """The target's first piece, where so many are in the loop and have a step every `tick` seconds: one comes with
        those that the same step makes, or at another time than these with those of so many others. Of two pictures,
        which neglect that what is left over is taken together with the next, and that pieces come together, the one
        with the shorter time is the nearer."""
        queue = self._queue
        longer = stretch(self._costs.devices[queue.device].cores, self._beside(self._target)).single
        servers = self._copies[queue.device] * queue.workers
        pieces = max(there * self._pieces_per_step / tick * self._servers, _RARE)
        fixed, per_row = queue.fixed * longer, queue.per_row * longer
        if alone_with is not None:
            once = Spread(fixed + per_row * min(1 + alone_with, queue.max_batch))
            with contextlib.suppress(Saturated):
                return queue_station(pieces, fixed, per_row, queue.max_batch, servers, queue.cv).wait.plus(once)
            return self._found.stations[self._target].wait.plus(once)
        found: list[Station] = []
        with contextlib.suppress(Saturated):
            found.append(ticked_station(pieces, fixed, per_row, queue.max_batch, servers, tick))
        if not found or found[0].utilisation > _LITTLE:
            with contextlib.suppress(Saturated):
                found.append(queue_station(pieces, fixed, per_row, queue.max_batch, servers, queue.cv))
        times = (station.wait.plus(station.first) for station in found or [self._found.stations[self._target]])
        return min(times, key=lambda time: time.mean)


def _kept(times: np.ndarray, lasting: float) -> np.ndarray:
    """What is left of a variance in the mean over a time, where its cause lasts so long, exponentially."""
    past = np.maximum(times, _RARE) / max(lasting, _RARE)
    kept: np.ndarray = np.where(past > 1e-3, 2 * (past + np.expm1(-past)) / past**2, 1.0)
    return kept
