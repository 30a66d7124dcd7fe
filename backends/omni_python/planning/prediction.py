"""What a pipeline does at a load, as numbers to print.

The formulas take Poisson arrivals, and latencies with the shape of a gamma distribution for each kind of request (who
needs a stage or not, who had to wait for it or not). They hold best below `SHAKY` of what can be computed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import msgspec

from omni_python.planning.balance import Balance, balance, factor, settle
from omni_python.planning.beginnings import first_output
from omni_python.planning.capacity import device_limits, saturation
from omni_python.planning.costs import Alone, Costs, StageCost
from omni_python.planning.queues import Saturated
from omni_python.planning.spread import Mixture
from omni_python.planning.ways import latest

SHAKY = 0.9
"""The share of the saturation beyond which small errors of the costs make large ones of the waits."""

_HALVINGS = 14
_ROOM = 8

_QUIET = 1e-6
"""Requests a second at which nothing waits."""


class StageFigures(msgspec.Struct, frozen=True):
    """`busy` is the share of the time in which a copy computes (of a loop: anything at all, long before it is full),
    `slower` the factor by which others on the device make its steps longer, `batch` the mean number computed at once. A
    request waits `wait_ms` for its first step (of a queue: each), and is with the stage `stay_ms`, from the moment when
    it can begin to its last output."""

    device: str
    copies: int
    busy: float
    slower: float
    batch: float
    wait_ms: float
    step_ms: float
    stay_ms: float


class DeviceFigures(msgspec.Struct, frozen=True):
    """`gpus` are those of all copies, `busy` is the share of its cores in use, `load` the rate by the one at which it
    saturates, and `limited_by` the stage that then gives way."""

    copies: int
    gpus: int
    busy: float
    load: float
    limited_by: str


class Latency(msgspec.Struct, frozen=True):
    """From a request's arrival. `tail_ms` is the percentile that was asked for."""

    mean_ms: float
    tail_ms: float


class Prediction(msgspec.Struct, frozen=True):
    """At `rate` requests a second. The pipeline saturates at `saturation`, where `bottleneck`, a stage, gives way. A
    latency is None where no stage has that output."""

    rate: float
    gpus: int
    saturation: float
    bottleneck: str
    percentile: float
    devices: dict[str, DeviceFigures]
    stages: dict[str, StageFigures]
    first_text: Latency | None
    first_audio: Latency | None
    whole: Latency

    @property
    def load(self) -> float:
        """The rate by the one that saturates."""
        return self.rate / self.saturation


def predict(costs: Costs, rate: float, copies: Mapping[str, int], percentile: float = 95.0) -> Prediction:
    """What becomes of `rate` requests a second, with so many copies of each device. Raises `Saturated`."""
    limits = device_limits(costs)
    most, weakest = saturation(limits, copies)
    if rate >= most:
        raise Saturated
    found, quiet = balance(costs, rate, copies), settle(costs, _QUIET, copies)
    whole = _latency(_last(costs, found), _last(costs, quiet), costs.alone.whole_ms, percentile)
    assert whole is not None, "every pipeline has a last stage"
    devices = {
        name: DeviceFigures(
            copies[name],
            copies[name] * device.gpus,
            _cores_used(costs, found, name, rate / copies[name]) / device.cores,
            rate / (limits[name].rate * copies[name]),
            limits[name].stage,
        )
        for name, device in costs.devices.items()
    }

    def begun(output: str, measured_ms: float | None) -> Latency | None:
        at_rate, lone = _begun(costs, found, rate, copies, output), _begun(costs, quiet, _QUIET, copies, output)
        return _latency(at_rate, lone, measured_ms, percentile)

    return Prediction(
        rate,
        sum(copies[name] * device.gpus for name, device in costs.devices.items()),
        most,
        limits[weakest].stage,
        percentile,
        devices,
        {name: _figures(costs, found, copies, name) for name in costs.stages},
        begun("text", costs.alone.first_text_ms),
        begun("audio", costs.alone.first_audio_ms),
        whole,
    )


def at_concurrency(costs: Costs, clients: float, copies: Mapping[str, int], percentile: float = 95.0) -> Prediction:
    """What so many clients get that ask again as soon as they were answered.

    Each finds what one finds who comes from outside where there are only the others (the arrival theorem, Reiser and
    Lavenberg 1980), and by Little's law the rate is the clients by the time of an answer; at most what saturates the
    pipeline with batches of no more than they are.
    """

    def room(stage: StageCost) -> int:
        """A loop that has room for all of them has it always, for no more come."""
        enough = stage.kind == "loop" and stage.max_batch * copies[stage.device] >= clients
        return stage.max_batch * _ROOM if enough else stage.max_batch

    roomy = _batches(costs, room)
    filled = _batches(costs, lambda stage: min(stage.max_batch, math.ceil(clients / copies[stage.device])))
    most, _ = saturation(device_limits(filled), copies)
    found = predict(roomy, _rate_of(roomy, clients - 1, copies), copies, percentile)
    rate = min(clients / found.whole.mean_ms * 1e3, most)
    # Work, which depends on the batches, with all of them there; but one alone is never in a batch with itself. What a
    # lone request took beyond its steps it lost while it was with the stages, not between answers.
    together = clients - 1 / clients
    nothing_lost = msgspec.structs.replace(roomy, alone=Alone())
    work = _at_rate(roomy, predict(roomy, _rate_of(nothing_lost, together, copies), copies, percentile), rate)
    mean = clients / rate * 1e3
    return msgspec.structs.replace(
        work,
        saturation=most,
        first_text=found.first_text,
        first_audio=found.first_audio,
        whole=Latency(mean, max(mean, found.whole.tail_ms)),
    )


def _rate_of(costs: Costs, there: float, copies: Mapping[str, int]) -> float:
    """The rate at which so many requests are there on average (Little's law)."""
    least, most = _QUIET, saturation(device_limits(costs), copies)[0]
    quiet = _last(costs, settle(costs, _QUIET, copies)).mean
    lost = max(0.0, (costs.alone.whole_ms or 0.0) / 1e3 - quiet)
    for _ in range(_HALVINGS):
        rate = (least + most) / 2
        try:
            found = rate * (_last(costs, settle(costs, rate, copies)).mean + lost)
        except Saturated:
            found = math.inf
        least, most = (rate, most) if found < there else (least, rate)
    return least


def _at_rate(costs: Costs, found: Prediction, rate: float) -> Prediction:
    """With the work of another rate (the utilisation law)."""
    standing = {name: device.standing / device.cores for name, device in costs.devices.items()}
    more = rate / found.rate
    devices = {
        name: msgspec.structs.replace(
            device,
            busy=min(1.0, standing[name] + (device.busy - standing[name]) * more),
            load=device.load * more,
        )
        for name, device in found.devices.items()
    }
    stages = {
        name: msgspec.structs.replace(stage, busy=min(1.0, stage.busy * more)) for name, stage in found.stages.items()
    }
    return msgspec.structs.replace(found, rate=rate, devices=devices, stages=stages)


def _batches(costs: Costs, largest: Callable[[StageCost], int]) -> Costs:
    """The same with other largest batches."""
    stages = {name: msgspec.structs.replace(stage, max_batch=largest(stage)) for name, stage in costs.stages.items()}
    return msgspec.structs.replace(costs, stages=stages)


def _figures(costs: Costs, found: Balance, copies: Mapping[str, int], name: str) -> StageFigures:
    stage, station, way = costs.stages[name], found.stations[name], found.ways[name]
    return StageFigures(
        stage.device,
        copies[stage.device],
        station.utilisation,
        factor(stage, found.slower[name]),
        station.batch,
        station.wait.mean * 1e3,
        station.step.mean * 1e3,
        (way.end.mean - way.ready.mean) * 1e3,
    )


def _last(costs: Costs, found: Balance) -> Mixture:
    return latest(found.ways[name].end for name in costs.stages)


def _begun(costs: Costs, found: Balance, rate: float, copies: Mapping[str, int], output: str) -> Mixture | None:
    """When the first stage with an output has the first of it."""
    times = [
        first_output(costs, found, rate, copies, name) for name, stage in costs.stages.items() if stage.output == output
    ]
    return min(times, default=None, key=lambda time: time.mean)


def _latency(
    time: Mixture | None, quiet: Mixture | None, measured_ms: float | None, percentile: float
) -> Latency | None:
    """As a lone request was measured: with what it took beyond its stages' steps, or by as much shorter as it was than
    the formulas say, for steps at the beginning may be shorter than others."""
    if time is None or quiet is None:
        return None
    lost = (quiet.mean * 1e3 if measured_ms is None else measured_ms) - quiet.mean * 1e3
    shorter = min(1.0, 1 + lost / (quiet.mean * 1e3)) if quiet.mean else 1.0
    lost = max(0.0, lost)
    return Latency(time.mean * 1e3 * shorter + lost, time.quantile(percentile) * 1e3 * shorter + lost)


def _cores_used(costs: Costs, found: Balance, device: str, rate: float) -> float:
    """A step that takes twice as long because it has half a core is no more work."""
    used = sum(
        found.stations[name].utilisation * stage.workers / factor(stage, found.slower[name])
        for name, stage in costs.on(device)
    )
    return used + rate * costs.devices[device].other_ms / 1e3 + costs.devices[device].standing
