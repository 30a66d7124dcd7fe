"""What requests cost a server on this machine, and how two such costs compare although everything drifts.

CPU times are the kernel's of each process, to the nanosecond; those that psutil tells are rounded to 10 ms. What is to
be compared is measured in many short pieces in turn: whatever the machine does meanwhile hits all sides alike.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import psutil
from raw_connection import Request
from raw_load import Load

from omni_python.bench.usage import process_name
from omni_python.serve.triton_server import TritonServer

_RESAMPLES = 10_000
_WARM_UP = 0.05  # of the requests that are then measured
_CPU_CLOCK = 2  # CPUCLOCK_SCHED of Linux's include/linux/posix-timers.h: all threads of a process, running or ended


class ServerClock:
    """The CPU seconds of a running server and of its stubs, all of which must stay."""

    def __init__(self, server: TritonServer) -> None:
        root = psutil.Process(server.process.pid)
        children = root.children(recursive=True)
        self._names = {root.pid: "tritonserver", **{child.pid: process_name(child.cmdline()) for child in children}}

    def seconds(self, pipelines: Sequence[str] | None = None) -> float:
        """Used so far; of the stubs only those of some pipelines, where these are given."""
        return sum(
            time.clock_gettime(~pid << 3 | _CPU_CLOCK) for pid, name in self._names.items() if _counts(name, pipelines)
        )


def _counts(name: str, pipelines: Sequence[str] | None) -> bool:
    """Whether a process belongs to one of them: `<pipeline>`, `<pipeline>_<process>` or the server itself."""
    return pipelines is None or name == "tritonserver" or any(f"{name}_".startswith(f"{one}_") for one in pipelines)


@dataclass(frozen=True)
class Cost:
    """Of so many requests: the time that all took, and the CPU time of the server and of the load, all in seconds."""

    requests: int
    seconds: float
    cpu: float
    load_cpu: float = 0.0

    @property
    def rate(self) -> float:
        """Requests a second."""
        return self.requests / self.seconds

    @property
    def cpu_ms(self) -> float:
        """The server's CPU milliseconds a request."""
        return 1e3 * self.cpu / self.requests

    def __add__(self, other: Cost) -> Cost:
        return Cost(
            self.requests + other.requests,
            self.seconds + other.seconds,
            self.cpu + other.cpu,
            self.load_cpu + other.load_cpu,
        )


def cost(
    clock: ServerClock, load: Load, total: int, concurrency: int, pipelines: Sequence[str] | None = None
) -> tuple[Cost, list[Request]]:
    """What `total` requests cost, always `concurrency` of them in flight, after a few that bring what they need into
    the caches. All must be served."""
    load.batch(int(_WARM_UP * total), concurrency)
    before, own, start = clock.seconds(pipelines), time.process_time(), time.perf_counter()
    ended = load.batch(total, concurrency)
    seconds, own = time.perf_counter() - start, time.process_time() - own
    found = Cost(total, seconds, clock.seconds(pipelines) - before, own)
    if failed := [request.error for request in ended if request.error]:
        raise SystemExit(f"{len(failed)} requests failed: {failed[0]}")
    return found, ended


def piece(clock: ServerClock, load: Load, total: int, concurrency: int, pipelines: Sequence[str] | None = None) -> Cost:
    """The cost alone, for `in_turns`."""
    return cost(clock, load, total, concurrency, pipelines)[0]


def in_turns(sides: Mapping[str, Callable[[], Cost]], blocks: int) -> list[dict[str, Cost]]:
    """Each block has every side twice, forwards and then backwards: A, B, B, A. So what drifts steadily cancels."""
    found = []
    for number in range(blocks):
        names = sorted(sides, reverse=number % 2 == 1)
        once = {name: sides[name]() for name in names}
        found.append({name: once[name] + sides[name]() for name in reversed(names)})
    return found


@dataclass(frozen=True)
class Interval:
    """A median, and where it lies with 95 % confidence."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Interval:
        """By the bootstrap: the medians of as many values, drawn from these again and again."""
        drawn = np.random.default_rng(0).choice(np.asarray(values), (_RESAMPLES, len(values)))
        low, high = np.percentile(np.median(drawn, axis=1), [2.5, 97.5])
        return cls(statistics.median(values), float(low), float(high))

    def __str__(self) -> str:
        return f"{self.median:.4f} (95 %: {self.low:.4f} to {self.high:.4f})"


def tell(blocks: Sequence[Mapping[str, Cost]], side: str, base: str) -> None:
    """Print what a side costs, and how many times that is what the base costs in the same block."""
    found: dict[str, Callable[[Cost], float]] = {
        "CPU ms a request": lambda of: of.cpu_ms,
        "requests/s": lambda of: of.rate,
    }
    for what, figure in found.items():
        line = f"{side:<16}{statistics.median(figure(block[side]) for block in blocks):10.3f} {what:<18}"
        if side != base:
            line += f"{Interval.of([figure(block[side]) / figure(block[base]) for block in blocks])} of {base}"
        print(line, flush=True)
