"""Hosts' clocks are put right as far as hops allow, and a trace over two hosts reads as if they had one."""

from __future__ import annotations

import random

import pytest

from omni_python.pipeline.tracing.clocks import Crossing, clock_offsets
from omni_python.pipeline.tracing.parts import TracePart, lanes_and_hops
from omni_python.proto.trace import ORCHESTRATOR, Passage, Span, StageRecord


@pytest.mark.parametrize("seed", range(20))
def test_offsets_are_as_good_as_the_fastest_hops(seed: int) -> None:
    rng = random.Random(seed)
    truth = {"a": 0.0, **{host: rng.uniform(-1e6, 1e6) for host in "bcd"}}
    fastest: dict[tuple[str, str], float] = {}
    crossings = []
    for one, other in (("a", "b"), ("b", "c"), ("c", "d")):  # d is only reached by way of c
        for source, target in ((one, other), (other, one)) * rng.randrange(1, 5):
            sent, took = rng.uniform(0, 100), rng.uniform(1e-4, 5e-3)
            crossings.append(Crossing(source, target, sent + truth[source], sent + took + truth[target]))
            fastest[source, target] = min(fastest.get((source, target), 1.0), took)
    rng.shuffle(crossings)
    found = clock_offsets("a", crossings)
    bound = 0.0
    for one, other in (("a", "b"), ("b", "c"), ("c", "d")):
        bound += (fastest[one, other] + fastest[other, one]) / 2
        assert abs(found[other] - truth[other]) <= bound + 1e-6
    assert found.keys() == truth.keys()


def test_where_hops_go_one_way_the_fastest_took_no_time() -> None:
    crossings = [Crossing("a", "b", 1.0, 51.25), Crossing("a", "b", 2.0, 52.125)]
    assert clock_offsets("a", crossings) == {"a": 0.0, "b": 50.125}
    assert clock_offsets("b", crossings) == {"b": 0.0, "a": -50.125}
    assert clock_offsets("a", [Crossing("x", "y", 0.0, 1.0)]) == {"a": 0.0}


def test_lanes_and_hops_of_two_hosts_are_by_one_clock() -> None:
    ahead = 5000.0

    def passage(source: str, target: str, time: float) -> Passage:
        return Passage(source, target, False, time, time, 1)

    own = StageRecord(
        ORCHESTRATOR,
        10.0,
        11.0,
        20.0,
        (Span("wait", 10.0, 20.0),),
        (passage(ORCHESTRATOR, "far", 11.0),),
        (passage("far", ORCHESTRATOR, 19.0),),
    )
    far = StageRecord(
        "far",
        ahead + 11.5,
        ahead + 18.5,
        ahead + 18.5,
        (Span("compute", ahead + 11.5, ahead + 18.5, 7.0, 1, 1),),
        (passage("far", ORCHESTRATOR, ahead + 18.5),),
        (passage(ORCHESTRATOR, "far", ahead + 11.5),),
    )
    lanes, hops = lanes_and_hops([TracePart("", 0, "here", own), TracePart("p", 0, "there", far)])
    assert [(lane.stage, lane.start, lane.end) for lane in lanes] == [(ORCHESTRATOR, 0.0, 10.0), ("far", 1.5, 8.5)]
    assert lanes[1].spans == (Span("compute", 1.5, 8.5, 7.0, 1, 1),)
    assert [(hop.sent, hop.received) for hop in hops] == [(1.0, 1.5), (8.5, 9.0)]


def test_chunks_that_nobody_took_are_told() -> None:
    own = StageRecord(ORCHESTRATOR, 1.0, 0.0, 9.0, (), (Passage(ORCHESTRATOR, "a", True, 2.0, 6.0, 5),), ())
    taken = StageRecord("a", 2.5, 0.0, 4.0, (), (), (Passage(ORCHESTRATOR, "a", True, 2.5, 4.0, 3),))
    _, [hop] = lanes_and_hops([TracePart("", 0, "h", own), TracePart("p", 0, "h", taken)])
    assert (hop.count, hop.taken) == (5, 3)
    assert (hop.sent, hop.received, hop.last_sent, hop.last_received) == (1.0, 1.5, 5.0, None)
    _, [hop] = lanes_and_hops([TracePart("", 0, "h", own)])  # the process of the other died
    assert (hop.count, hop.taken, hop.received) == (5, 0, None)
