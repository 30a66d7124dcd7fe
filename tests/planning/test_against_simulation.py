"""The calculator against a simulation of every step, fed with the same costs.

`OMNI_SIMULATED=4` simulates four times as many requests of each, so that chance makes half as much of what is seen.
"""

from __future__ import annotations

import os
import random

import numpy as np
import pytest

from omni_python.planning.capacity import device_limits, saturation
from omni_python.planning.prediction import Latency, at_concurrency, predict
from tests.planning.pipelines import brief, some_costs, some_speech_costs, speech_costs
from tests.planning.simulation import Outcome, simulate, simulate_clients

MORE = int(os.environ.get("OMNI_SIMULATED", "1"))
COPIES = {"host": 1, "gpu0": 1, "gpu1": 1}


@pytest.mark.parametrize(("load", "requests"), [(0.1, 250), (0.3, 400), (0.5, 500), (0.7, 700), (0.85, 900)])
def test_five_loads(load: float, requests: int) -> None:
    """Within 10 %: what is done, how busy stages and devices are, means of all latencies, and the 95th percentile of
    whole answers. That of first outputs takes more requests to be known, see below."""
    costs = speech_costs()
    rate = load * saturation(device_limits(costs), COPIES)[0]
    predicted = predict(costs, rate, COPIES)
    seen = simulate(costs, rate, COPIES, requests * MORE, seed=3)
    assert seen.throughput == pytest.approx(rate, rel=0.1)
    for name, stage in predicted.stages.items():
        assert stage.busy == pytest.approx(seen.utilisation[name], rel=0.1, abs=0.02), name
    for name, device in predicted.devices.items():
        assert device.busy == pytest.approx(seen.devices[name], rel=0.1, abs=0.02), name
    check_latency(predicted.whole, seen.whole, tail=0.1)
    check_mean(predicted.first_text, seen.first_text)
    check_mean(predicted.first_audio, seen.first_audio)


@pytest.mark.parametrize("load", [0.1, 0.3, 0.5, 0.7, 0.85])
def test_first_outputs_at_five_loads(load: float) -> None:
    """Their means and their 95th percentiles within 10 %, of so many requests that chance makes 3 to 6 % of it."""
    costs = brief(speech_costs())
    rate = load * saturation(device_limits(costs), COPIES)[0]
    predicted, seen = predict(costs, rate, COPIES), simulate(costs, rate, COPIES, requests=1500 * MORE, seed=11)
    check_latency(predicted.first_text, seen.first_text, tail=0.1)
    check_latency(predicted.first_audio, seen.first_audio, tail=0.1)


@pytest.mark.parametrize("seed", range(200, 205))
def test_first_text_of_other_pipelines(seed: int) -> None:
    """Costs, loads and seeds that nothing was fitted to: encoders on the thinker's GPU, which those who need one find
    slowed afterwards, and on their own; 10 to 75 % of what can be computed."""
    costs = some_costs(seed)
    copies = dict.fromkeys(costs.devices, 1)
    rate = random.Random(-seed).uniform(0.1, 0.75) * saturation(device_limits(costs), copies)[0]
    seen = simulate(costs, rate, copies, requests=1500 * MORE, seed=seed)
    check_latency(predict(costs, rate, copies).first_text, seen.first_text, tail=0.1)


@pytest.mark.parametrize("seed", [3000, 3001, 3002])
def test_first_audio_of_other_pipelines(seed: int) -> None:
    """Costs, copies, loads and seeds that nothing was fitted to."""
    costs, copies = some_speech_costs(seed)
    rate = random.Random(-seed).uniform(0.1, 0.75) * saturation(device_limits(costs), copies)[0]
    predicted, seen = predict(costs, rate, copies), simulate(costs, rate, copies, requests=1000 * MORE, seed=seed)
    check_latency(predicted.first_text, seen.first_text, tail=0.1)
    check_latency(predicted.first_audio, seen.first_audio, tail=0.1)


def check_mean(predicted: Latency | None, seen: np.ndarray) -> None:
    assert predicted is not None
    assert predicted.mean_ms == pytest.approx(seen.mean() * 1e3, rel=0.1)


def check_latency(predicted: Latency | None, seen: np.ndarray, tail: float) -> None:
    check_mean(predicted, seen)
    assert predicted is not None
    assert predicted.tail_ms == pytest.approx(np.percentile(seen, 95) * 1e3, rel=tail)


def test_one_gpu_for_all() -> None:
    costs = speech_costs("gpu0", "gpu0")
    copies = {"host": 1, "gpu0": 1}
    rate = 0.5 * saturation(device_limits(costs), copies)[0]
    predicted, seen = predict(costs, rate, copies), simulate(costs, rate, copies, requests=500 * MORE, seed=4)
    check_latency(predicted.whole, seen.whole, tail=0.15)
    check_latency(predicted.first_audio, seen.first_audio, tail=0.1)


def test_copies() -> None:
    costs = speech_costs()
    copies = {"host": 1, "gpu0": 2, "gpu1": 3}
    rate = 0.6 * saturation(device_limits(costs), copies)[0]
    predicted, seen = predict(costs, rate, copies), simulate(costs, rate, copies, requests=600 * MORE, seed=5)
    check_latency(predicted.whole, seen.whole, tail=0.15)
    check_latency(predicted.first_text, seen.first_text, tail=0.15)
    for name, device in predicted.devices.items():
        assert device.busy == pytest.approx(seen.devices[name], rel=0.1, abs=0.02), name


@pytest.mark.parametrize("clients", [1, 4, 16])
def test_clients_that_ask_again(clients: int) -> None:
    costs = speech_costs()
    predicted = at_concurrency(costs, clients, COPIES)
    seen = simulate_clients(costs, clients, COPIES, requests=160 * MORE, seed=7)
    assert predicted.rate == pytest.approx(seen.throughput, rel=0.1)
    assert predicted.whole.mean_ms == pytest.approx(seen.whole.mean() * 1e3, rel=0.1)
    for name, device in predicted.devices.items():
        assert device.busy == pytest.approx(seen.devices[name], rel=0.1, abs=0.02), name


def test_beyond_saturation_nothing_is_predicted_and_the_queue_grows() -> None:
    """The load that the calculator calls too much is too much: answers take longer the longer it lasts."""
    costs = speech_costs()
    rate = 1.15 * saturation(device_limits(costs), COPIES)[0]
    seen: Outcome = simulate(costs, rate, COPIES, requests=900, seed=6)
    early, late = seen.whole[:200].mean(), seen.whole[-200:].mean()
    assert late > 1.5 * early
    assert seen.throughput < rate
