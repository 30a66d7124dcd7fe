"""Admission under more than a pipeline can take, in simulated time."""

from __future__ import annotations

import heapq
import itertools
from collections import deque
from dataclasses import dataclass, field

import pytest

from omni_python.pipeline.admission import Admission
from omni_python.proto.errors import Unavailable


@dataclass
class Clock:
    now: float = 0.0

    def __call__(self) -> float:
        return self.now


@dataclass
class Pipeline:
    """First come, first served, by `servers` side by side, each of which takes `work` seconds. What is past its
    deadline leaves the line; what is being worked on when it passes is lost with the work."""

    servers: int
    work: float
    max_in_flight: int = 256
    max_queued: int = 256
    clock: Clock = field(default_factory=Clock)

    def __post_init__(self) -> None:
        self.admission: Admission[str] = Admission(self.max_in_flight, self.max_queued, self.clock)
        self.line: deque[str] = deque()
        self.deadlines: dict[str, float] = {}
        self.events: list[tuple[float, int, str, str]] = []
        self.ids = itertools.count()
        self.free = self.servers
        self.served: list[float] = []
        self.late: list[float] = []
        self.refused: list[float] = []

    def ask(self, at: float, seconds: float) -> None:
        """A request comes `at`."""
        number = next(self.ids)
        self.deadlines[str(number)] = at + seconds
        heapq.heappush(self.events, (at, number, "comes", str(number)))

    def run(self) -> None:
        while self.events:
            self.clock.now, _, what, request = heapq.heappop(self.events)
            if what == "comes":
                self._comes(request)
            elif request in self.deadlines:
                if what == "served":
                    self.served.append(self.clock.now)
                else:
                    self.late.append(self.clock.now)
                del self.deadlines[request]
                self.line.extend(self.admission.release(request, what == "served", what == "late"))
            self.free += what == "served"
            self._work()

    def _comes(self, request: str) -> None:
        seconds = self.deadlines[request] - self.clock.now
        try:
            if self.admission.admit(request, request, seconds):
                self.line.append(request)
        except Unavailable:
            del self.deadlines[request]
            self.refused.append(self.clock.now)
            return
        heapq.heappush(self.events, (self.deadlines[request], next(self.ids), "late", request))

    def _work(self) -> None:
        while self.free and self.line:
            request = self.line.popleft()
            if request in self.deadlines:
                self.free -= 1
                heapq.heappush(self.events, (self.clock.now + self.work, next(self.ids), "served", request))


@pytest.mark.parametrize(
    ("servers", "work", "deadline"), [(1, 0.05, 2.0), (16, 0.5, 2.0), (4, 8.0, 30.0), (1, 0.001, 0.05)]
)
@pytest.mark.parametrize("times", [1.5, 10.0])
def test_far_too_much_leaves_what_is_served_in_time_as_it_was(
    servers: int, work: float, deadline: float, times: float
) -> None:
    pipeline = Pipeline(servers, work)
    capacity = servers / work
    seconds = 40 * deadline
    for number in range(int(times * capacity * seconds)):
        pipeline.ask(number / (times * capacity), deadline)
    pipeline.run()
    learned = seconds / 4
    goodput = sum(learned < at < seconds for at in pipeline.served) / (seconds - learned)
    assert goodput > 0.9 * capacity
    assert len(pipeline.late) < 0.05 * (len(pipeline.served) + len(pipeline.refused))


def test_nobody_is_refused_for_time_before_somebody_was_late() -> None:
    pipeline = Pipeline(servers=1, work=0.1)
    for burst in range(20):
        for _ in range(18):
            pipeline.ask(2.0 * burst, seconds=2.0)
    pipeline.run()
    assert len(pipeline.served) == 20 * 18


def test_patient_requests_are_not_refused_for_the_lateness_of_others() -> None:
    pipeline = Pipeline(servers=4, work=1.0)
    for number in range(100):
        pipeline.ask(0.5 * number, seconds=600.0)
        pipeline.ask(0.5 * number, seconds=0.5)
    pipeline.run()
    assert len(pipeline.served) >= 100


def test_normal_traffic_is_served_again_after_an_overload() -> None:
    pipeline = Pipeline(servers=1, work=0.05)
    for number in range(2000):
        pipeline.ask(number / 200, seconds=2.0)
    for number in range(100):
        pipeline.ask(30.0 + number / 10, seconds=2.0)
    pipeline.run()
    assert sum(at > 30.0 for at in pipeline.served) == 100


def test_a_long_request_does_not_keep_others_out() -> None:
    """Some were late, and then nothing ends for long: the pace is not known any more."""
    clock = Clock()
    admission: Admission[str] = Admission(8, 8, clock)
    for number in range(40):
        admission.admit(str(number), "", 1.0)
        clock.now += 1.0
        list(admission.release(str(number), served=number < 20, late=number >= 20))
    admission.admit("long", "", 600.0)
    with pytest.raises(Unavailable, match="1 requests are in flight or waiting.*deadline of 1 s"):
        admission.admit("short", "", 1.0)
    clock.now += 60.0
    admission.admit("short", "", 1.0)


def test_whoever_comes_first_is_admitted_whatever_happened_before() -> None:
    clock = Clock()
    admission: Admission[str] = Admission(8, 8, clock)
    for number in range(40):
        assert admission.admit(str(number), "", 0.001)
        clock.now += 1.0
        list(admission.release(str(number), late=True))
