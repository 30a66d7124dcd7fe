"""A discrete-event simulation of a pipeline: every request, every step, every core; no formula of the calculator.

Requests come at random (Poisson). A request goes to the copy of a device that has the fewest, and stays with it.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Generator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import simpy

from omni_python.planning.costs import Costs, StageCost

Steps = Generator[simpy.Event, Any, Any]


class Cores:
    """Work that goes on at once shares `cores` evenly; none gets more than one."""

    def __init__(self, env: simpy.Environment, cores: float) -> None:
        self._env = env
        self._cores = cores
        self._left: dict[simpy.Event, float] = {}
        self._since = 0.0
        self._plan = 0
        self.used = 0.0
        """Core-seconds."""

    def work(self, seconds: float) -> simpy.Event:
        self._advance()
        done = self._env.event()
        self._left[done] = seconds
        self._schedule()
        return done

    def _speed(self) -> float:
        return min(1.0, self._cores / len(self._left)) if self._left else 0.0

    def _advance(self) -> None:
        passed, self._since = self._env.now - self._since, self._env.now
        got = passed * self._speed()
        self.used += got * len(self._left)
        for done in self._left:
            self._left[done] -= got

    def _schedule(self) -> None:
        self._plan += 1
        if self._left:
            plan, delay = self._plan, max(0.0, min(self._left.values())) / self._speed()
            timeout = self._env.timeout(delay)
            assert timeout.callbacks is not None, "it is new"
            timeout.callbacks.append(lambda _: self._finish(plan))

    def _finish(self, plan: int) -> None:
        if plan != self._plan:
            return
        self._advance()
        for done in [done for done, left in self._left.items() if left <= 1e-12]:
            del self._left[done]
            done.succeed()
        self._schedule()


@dataclass(eq=False)
class Job:
    """A request in a stage: `made` are its steps' ends, and `wanted` the events of those who wait for one."""

    env: simpy.Environment
    steps: int
    made: int = 0
    wanted: dict[int, simpy.Event] = field(default_factory=dict)

    def reached(self, step: int) -> simpy.Event:
        event = self.wanted.setdefault(min(step, self.steps), self.env.event())
        if self.made >= min(step, self.steps) and not event.triggered:
            event.succeed()
        return event

    def step(self) -> None:
        self.made += 1
        if (event := self.wanted.get(self.made)) is not None and not event.triggered:
            event.succeed()


class Replica:
    """One copy of a stage: its inputs, and the processes that compute them."""

    def __init__(self, env: simpy.Environment, cost: StageCost, cores: Cores, chance: random.Random) -> None:
        self._env, self._cost, self._cores, self._chance = env, cost, cores, chance
        self._waiting: deque[Job] = deque()
        self._woken = env.event()
        self.busy = 0.0
        for _ in range(cost.workers):
            env.process(self._loop() if cost.kind == "loop" else self._queue())

    def give(self, job: Job) -> None:
        self._waiting.append(job)
        woken, self._woken = self._woken, self._env.event()
        woken.succeed()

    def _computed(self, seconds: float) -> Steps:
        start = self._env.now
        yield self._cores.work(seconds)
        self.busy += self._env.now - start

    def _step_time(self, rows: int) -> float:
        return self._cost.fixed + rows * self._cost.per_row

    def _queue(self) -> Steps:
        while True:
            while not self._waiting:
                yield self._woken
            batch = [self._waiting.popleft() for _ in range(min(len(self._waiting), self._cost.max_batch))]
            yield from self._computed(_varied(self._step_time(len(batch)), self._cost.cv, self._chance))
            for job in batch:
                job.step()

    def _loop(self) -> Steps:
        running: list[Job] = []
        while True:
            while not self._waiting and not running:
                yield self._woken
            room = self._cost.max_batch - len(running)
            new = [self._waiting.popleft() for _ in range(min(len(self._waiting), room))]
            if new:
                yield from self._computed(self._cost.first * len(new))
                for job in new:
                    job.step()
            if running:
                yield from self._computed(self._step_time(len(running)))
                for job in running:
                    job.step()
            running = [job for job in (*running, *new) if job.made < job.steps]


@dataclass
class Outcome:
    """What the simulation saw: seconds, by request, and shares of the time."""

    throughput: float
    first_text: np.ndarray
    first_audio: np.ndarray
    whole: np.ndarray
    utilisation: dict[str, float]
    devices: dict[str, float]


def simulate(costs: Costs, rate: float, copies: Mapping[str, int], requests: int, seed: int) -> Outcome:
    """`requests` that come after half as many, which do not count."""
    simulation = _Simulation(costs, copies, requests, seed)
    return simulation.run([simulation.arrivals(rate)])


def simulate_clients(costs: Costs, clients: int, copies: Mapping[str, int], requests: int, seed: int) -> Outcome:
    """The same of clients that ask again as soon as they were answered."""
    simulation = _Simulation(costs, copies, requests, seed)
    return simulation.run([simulation.client() for _ in range(clients)])


class _Simulation:
    def __init__(self, costs: Costs, copies: Mapping[str, int], requests: int, seed: int) -> None:
        self._costs = costs
        self._warm, self._asked = requests // 2, requests // 2 + requests
        self._next = 0
        self._since = 0.0
        self._chance = random.Random(seed)
        self._env = simpy.Environment()
        self._cores = {
            name: [Cores(self._env, device.cores) for _ in range(copies[name])]
            for name, device in costs.devices.items()
        }
        self._replicas = {
            name: [Replica(self._env, cost, cores, self._chance) for cores in self._cores[cost.device]]
            for name, cost in costs.stages.items()
        }
        self._present = {name: [0] * copies[name] for name in costs.devices}
        self._seen: dict[str, list[float]] = {"text": [], "audio": [], "whole": []}

    def run(self, sources: list[Steps]) -> Outcome:
        self._env.run(self._env.all_of([self._env.process(source) for source in sources]))
        whole = np.array(self._seen["whole"])
        return Outcome(
            len(whole) / (self._env.now - self._since),
            np.array(self._seen["text"]),
            np.array(self._seen["audio"]),
            whole,
            self._utilisation,
            self._devices,
        )

    def arrivals(self, rate: float) -> Steps:
        """Of a Poisson process those that have the rate in this very run, which cannot tell more than that."""
        gaps = np.array([self._chance.expovariate(1.0) for _ in range(self._asked)])
        for part in (gaps[: self._warm], gaps[self._warm :]):
            part *= len(part) / part.sum() / rate
        running = []
        for gap in gaps:
            yield self._env.timeout(float(gap))
            running.append(self._ask())
        yield self._env.all_of(running)

    def client(self) -> Steps:
        while self._next < self._asked:
            yield self._ask()

    def _ask(self) -> simpy.Event:
        """The figures are those from the first request that counts to when the last one is sent."""
        if self._next == self._warm:
            self._since = self._env.now
            self._forget()
        self._next += 1
        if self._next == self._asked:
            self._note(self._env.now - self._since)
        return self._env.process(self._request(self._next > self._warm))

    def _forget(self) -> None:
        for cores in self._cores.values():
            for one in cores:
                one.used = 0.0
        for replicas in self._replicas.values():
            for replica in replicas:
                replica.busy = 0.0

    def _note(self, seconds: float) -> None:
        self._utilisation = {
            name: sum(one.busy for one in replicas) / len(replicas) / self._costs.stages[name].workers / seconds
            for name, replicas in self._replicas.items()
        }
        self._devices = {
            name: sum(one.used for one in cores) / len(cores) / self._costs.devices[name].cores / seconds
            for name, cores in self._cores.items()
        }

    def _request(self, counted: bool) -> Steps:
        start = self._env.now
        place = {name: min(range(len(there)), key=there.__getitem__) for name, there in self._present.items()}
        for name, copy in place.items():
            self._present[name][copy] += 1
            if other := self._costs.devices[name].other_ms:
                self._cores[name][copy].work(other / 1e3)
        jobs: dict[str, Job] = {}
        done: dict[str, simpy.Event] = {}
        outputs: dict[str, float] = {}
        for name, cost in self._costs.stages.items():
            jobs[name] = Job(self._env, max(1, round(_varied(cost.steps, cost.steps_cv, self._chance))))
            done[name] = self._env.process(self._stage(name, place[cost.device], jobs, done, outputs))
        yield self._env.all_of(list(done.values()))
        for name, copy in place.items():
            self._present[name][copy] -= 1
        if counted:
            self._seen["whole"].append(self._env.now - start)
            for output, at in outputs.items():
                self._seen[output].append(at - start)

    def _stage(
        self, name: str, copy: int, jobs: dict[str, Job], done: dict[str, simpy.Event], outputs: dict[str, float]
    ) -> Steps:
        cost = self._costs.stages[name]
        yield self._env.all_of([done[source] for source in cost.after])
        if self._chance.random() >= cost.share:
            return
        replica, job = self._replicas[name][copy], jobs[name]
        source = jobs[cost.streams_from] if cost.streams_from is not None else None
        if source is not None and cost.kind == "queue":
            self._env.process(self._windows(replica, job, source, int(cost.needs)))
        else:
            if source is not None:
                yield source.reached(int(cost.needs))
            replica.give(job)
            if cost.kind == "queue":
                self._env.process(self._one_by_one(replica, job))
        yield job.reached(1)
        if cost.output is not None:
            outputs[cost.output] = self._env.now
        yield job.reached(job.steps)
        if cost.streams_from is not None:
            yield done[cost.streams_from]

    def _one_by_one(self, replica: Replica, job: Job) -> Steps:
        for piece in range(1, job.steps):
            yield job.reached(piece)
            replica.give(job)

    def _windows(self, replica: Replica, job: Job, source: Job, needs: int) -> Steps:
        """Pieces of a stream come as their source makes them: the last one with its last step."""
        for piece in range(job.steps):
            evenly = (source.steps - needs) * piece / max(1, job.steps - 1)
            yield source.reached(max(1, round(needs + evenly)))
            replica.give(job)


def _varied(mean: float, cv: float, chance: random.Random) -> float:
    """Gamma distributed with this mean and coefficient of variation."""
    return chance.gammavariate(1 / cv**2, mean * cv**2) if cv else mean
