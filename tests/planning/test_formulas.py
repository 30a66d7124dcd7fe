"""The stations' formulas against closed forms, and against simulations of single stations."""

from __future__ import annotations

import math
import random

import msgspec
import numpy as np
import pytest
from scipy import optimize, stats

from omni_python.planning.capacity import device_limits
from omni_python.planning.costs import Alone, Costs, Device, StageCost
from omni_python.planning.prediction import predict
from omni_python.planning.queues import Saturated, Station, erlang_c, loop_station, queue_station
from omni_python.planning.sharing import Beside, Stretch, stretch
from omni_python.planning.spread import Mixture, Spread
from tests.planning.simulation import simulate


def test_erlang_c_is_the_sum_of_its_definition() -> None:
    chance = random.Random(0)
    for _ in range(20):
        servers = chance.randrange(1, 12)
        load = chance.uniform(0.05, 0.97) * servers
        top = load**servers / math.factorial(servers) * servers / (servers - load)
        whole = sum(load**k / math.factorial(k) for k in range(servers)) + top
        assert erlang_c(servers, load) == pytest.approx(top / whole)


@pytest.mark.parametrize("servers", [1, 2, 3, 8])
@pytest.mark.parametrize("load", [0.1, 0.5, 0.9])
def test_as_many_wait_as_erlang_says(servers: int, load: float) -> None:
    station = queue_station(load * servers / 0.01, 0.0, 0.01, 1, servers, 1.0)
    assert station.delayed == pytest.approx(erlang_c(servers, load * servers))
    if servers == 2:
        assert station.delayed == pytest.approx(2 * load**2 / (1 + load))


@pytest.mark.parametrize("servers", [2, 4, 8])
@pytest.mark.parametrize("load", [0.3, 0.6, 0.8, 0.9])
def test_percentiles_of_several_servers(servers: int, load: float) -> None:
    """M/M/c: Erlang's C of all wait, an exponential time."""
    step = 0.01
    stage = StageCost(device="host", fixed_ms=step * 1e3, cv=1.0, workers=servers)
    rate = load * servers / step
    delayed, drained = erlang_c(servers, load * servers), servers / step - rate

    def longer(time: float) -> float:
        """The probability of it: of a step, and of the sum of a wait and a step."""
        both = (drained * step * math.exp(-time / step) - math.exp(-drained * time)) / (drained * step - 1)
        return (1 - delayed) * math.exp(-time / step) + delayed * both

    for percentile in (50, 90, 95, 99):
        found = predict(one_stage(stage), rate, {"host": 1}, percentile).whole.tail_ms / 1e3
        exact = optimize.brentq(lambda time, left=1 - percentile / 100: longer(time) - left, 0, 100 * step)
        assert found == pytest.approx(exact, rel=0.06), percentile


def test_batches_of_one_are_pollaczek_and_khinchine() -> None:
    """The chain of batches, where a second one never pays, is M/D/1."""
    rate, time = 60.0, 0.01
    single = queue_station(rate, 0.0, time, 1, 1, 0.0)
    assert single.wait.mean == pytest.approx(rate * time**2 / (2 * (1 - rate * time)))
    # Batches of two that take twice as long do the same work, but all of a batch end together.
    double = queue_station(rate, 0.0, time, 2, 1, 0.0)
    assert double.utilisation == pytest.approx(single.utilisation, rel=1e-3)
    assert double.wait.mean + double.first.mean > single.wait.mean + single.first.mean


def test_a_loop_whose_steps_do_not_depend_on_their_number_never_waits_for_others() -> None:
    """M/G/infinity: the number there is Poisson, and a step takes what it takes."""
    station = loop_station(20.0, 0.0, 0.01, 0.0, 51, 1000, 1, 0.0, Stretch())
    assert station.step.mean == pytest.approx(0.01)
    assert station.utilisation == pytest.approx(1 - math.exp(-20.0 * 50 * 0.01), rel=1e-6)


def test_a_loop_that_computes_one_by_one_is_processor_sharing() -> None:
    """M/G/1 with processor sharing: the mean stay is the work by 1 - load."""
    rate, work = 8.0, 0.1
    station = loop_station(rate, 0.0, 0.0, work / 50, 51, 10_000, 1, 0.0, Stretch())
    assert 50 * station.step.mean == pytest.approx(work / (1 - rate * work), rel=1e-6)


def test_quantiles_are_those_of_a_gamma_distribution() -> None:
    for shape in (0.7, 1.0, 3.0, 20.0):
        time = Spread.gamma(2.0, 4.0 / shape)
        for percentile in (50, 95, 99):
            assert Mixture().plus(time).quantile(percentile) == pytest.approx(
                stats.gamma(shape, scale=2 / shape).ppf(percentile / 100), rel=0.03
            )


@pytest.mark.parametrize("share", [0.1, 0.3, 0.9])
def test_a_time_that_some_need(share: float) -> None:
    """Two humps, which have no shape in common with a gamma distribution."""
    random = np.random.default_rng(int(share * 10))
    values = random.gamma(4.0, 1.0, 200_000) + random.gamma(3.0, 4.0, 200_000) * (random.random(200_000) < share)
    mixed = Mixture().plus(Spread.gamma(4.0, 4.0)).plus(Mixture().plus(Spread.gamma(12.0, 48.0)).by_some(share))
    moments = mixed.moments()
    assert mixed.mean == moments.mean == pytest.approx(values.mean(), rel=0.02)
    assert moments.variance == pytest.approx(values.var(), rel=0.02)
    assert moments.third == pytest.approx(((values - values.mean()) ** 3).mean(), rel=0.05)
    for percentile in (50, 90, 95, 99):
        assert mixed.quantile(percentile) == pytest.approx(np.percentile(values, percentile), rel=0.02)


def test_many_who_may_need_it_or_not_are_taken_together() -> None:
    """What is too many kinds to look at each keeps its moments."""
    each, together = Mixture(), Spread(0.0)
    for _ in range(8):
        each = each.plus(Mixture().plus(Spread(1.0)).by_some(0.5))
        together = Spread(together.mean + 0.5, together.variance + 0.25)
    assert len(each.parts) < 2**8
    assert each.moments() == pytest.approx(together)


def test_the_time_of_those_who_need_it() -> None:
    needed = Spread.gamma(12.0, 48.0)
    assert Mixture().plus(needed).by_some(0.3).moments().of_those(0.3) == pytest.approx(needed)


def test_steps_that_share_cores() -> None:
    assert stretch(2, [Beside(1.0)]).steady == 1.0
    assert stretch(1, [Beside(1.0)] * 2).steady == pytest.approx(3.0)
    half = stretch(1, [Beside(0.5)])
    assert half.steady == pytest.approx(4 / 3) and half.single == pytest.approx(1.5)
    assert half.variance == pytest.approx(0.25)
    assert half.levels == ((1.0, 0.5), (2.0, 0.5)) and half.fed == (0.0, 0.0)


def test_what_is_known_of_the_feeder_at_each_level() -> None:
    """With one of two beside, it is either, by their shares; with both, it is there."""
    found = stretch(1, [Beside(0.2, 0.01, feeds=True), Beside(0.5, 0.02)])
    assert np.array(found.levels) == pytest.approx(np.array([(1.0, 0.4), (2.0, 0.5), (3.0, 0.1)]))
    assert found.fed == pytest.approx((0.0, 0.2, 1.0))
    assert found.lasting == pytest.approx((0.16 * 0.01 + 0.25 * 0.02) / 0.41)


def test_what_cannot_be_computed_is_said() -> None:
    with pytest.raises(Saturated):
        queue_station(11.0, 0.1, 0.0, 1, 1, 0.0)
    with pytest.raises(Saturated):
        loop_station(11.0, 0.05, 0.005, 0.0005, 11, 1, 1, 0.0, Stretch())
    assert queue_station(11.0, 0.1, 0.0, 2, 1, 0.0).utilisation < 1


def one_queue(chance: random.Random) -> tuple[StageCost, float]:
    """A stage that takes what waits, and a rate that it can do."""
    largest = chance.choice([1, 2, 4, 8])
    stage = StageCost(
        device="host",
        fixed_ms=chance.uniform(2, 20),
        per_row_ms=chance.uniform(0.5, 10),
        max_batch=largest,
        workers=chance.choice([1, 1, 3]),
    )
    return stage, chance.uniform(0.2, 0.85) * stage.workers / stage.least_work


def test_what_a_device_does_without_requests_is_use_of_it() -> None:
    stage = StageCost(device="host", fixed_ms=10, workers=4, output="text")
    busy, saturation = [], []
    for standing in (0.0, 0.5):
        costs = Costs(devices={"host": Device(cores=2, other_ms=5, standing=standing)}, stages={"it": stage})
        plan = predict(costs, 40.0, {"host": 1})
        busy.append(plan.devices["host"].busy)
        saturation.append(plan.saturation)
    assert busy == pytest.approx([40 * 0.015 / 2, 40 * 0.015 / 2 + 0.25])
    assert saturation[1] < saturation[0]


def test_a_vocoder_beside_a_talker_that_never_rests_has_half_of_its_gpu() -> None:
    """One window at a time, 77 ms for a request, and a loop that is busy long before its batches are full."""
    loop = StageCost(device="gpu0", kind="loop", first_ms=4, fixed_ms=5, per_row_ms=0.1, steps=93, max_batch=64)
    vocoder = StageCost(device="gpu0", fixed_ms=7.7, steps=10, streams_from="loop", output="audio")
    costs = Costs(devices={"gpu0": Device(gpus=1)}, stages={"loop": loop, "vocoder": vocoder})
    limit = device_limits(costs)["gpu0"]
    assert limit.stage == "vocoder"
    assert limit.rate == pytest.approx(1 / (2 * 0.077), rel=0.05)


def test_a_lone_request_takes_what_it_was_measured_to_take() -> None:
    """More than its steps, or less."""
    for measured in (8.0, 40.0):
        stage = StageCost(device="host", fixed_ms=10, output="text")
        costs = Costs(devices={"host": Device()}, stages={"it": stage}, alone=Alone(first_text_ms=measured))
        found = predict(costs, 1e-3, {"host": 1}).first_text
        assert found is not None and found.mean_ms == pytest.approx(measured, rel=1e-3)


@pytest.mark.parametrize("seed", range(4))
def test_a_queue_against_its_simulation(seed: int) -> None:
    stage, rate = one_queue(random.Random(seed))
    seen = simulate(one_stage(stage), rate, {"host": 1}, requests=4000, seed=seed)
    station = queue_station(rate, stage.fixed, stage.per_row, stage.max_batch, stage.workers, 0.0)
    assert station.utilisation == pytest.approx(seen.utilisation["it"], rel=0.06)
    check(station, seen.whole, rel=0.1)


@pytest.mark.parametrize("seed", range(3))
def test_a_loop_against_its_simulation(seed: int) -> None:
    """First steps and later ones, more or less of the time."""
    chance = random.Random(seed)
    stage = StageCost(
        device="host",
        kind="loop",
        first_ms=chance.uniform(5, 20),
        fixed_ms=chance.uniform(2, 8),
        per_row_ms=chance.uniform(0.1, 1),
        steps=chance.randrange(10, 40),
        steps_cv=0.3,
        max_batch=32,
    )
    rate = (0.3, 0.5, 0.7)[seed] / stage.least_work
    seen = simulate(one_stage(stage), rate, {"host": 1}, requests=1500, seed=seed)
    station = loop_station(
        rate, stage.first, stage.fixed, stage.per_row, stage.steps, stage.max_batch, 1, stage.steps_cv, Stretch()
    )
    stay = station.wait.mean + station.first.mean + (stage.steps - 1) * station.step.mean
    assert stay == pytest.approx(seen.whole.mean(), rel=0.1)
    assert station.wait.mean + station.first.mean == pytest.approx(seen.first_text.mean(), rel=0.1)


def one_stage(stage: StageCost) -> Costs:
    stage = msgspec.structs.replace(stage, output="text")
    return Costs(devices={"host": Device(cores=stage.workers)}, stages={"it": stage})


def check(station: Station, seen: np.ndarray, rel: float) -> None:
    time = station.wait.plus(station.first)
    assert time.mean == pytest.approx(seen.mean(), rel=rel)
    assert Mixture().plus(time).quantile(95) == pytest.approx(np.percentile(seen, 95), rel=2 * rel)
