"""How much each device can do: the load at which one of its stages can no longer keep up."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from omni_python.planning.costs import Costs, Device, StageCost
from omni_python.planning.sharing import Beside, stretch

_HALVINGS = 24
_ROUNDS = 200
_CLOSE = 1e-5


@dataclass(frozen=True)
class Limit:
    """The requests a second of which one copy of a device gets the better, and the stage that gives way first."""

    rate: float
    stage: str


def device_limits(costs: Costs) -> dict[str, Limit]:
    """The limit of one copy of each device.

    At the limit batches are full, and a stage computes all the time: its steps are longer by what others compute
    beside it (see `sharing`), and the cores have no more to give.
    """
    return {name: _limit(costs, name) for name in costs.devices}


def saturation(limits: Mapping[str, Limit], copies: Mapping[str, int]) -> tuple[float, str]:
    """Requests a second that so many copies of the devices can just not do, and the device that cannot."""
    device = min(limits, key=lambda name: limits[name].rate * copies[name])
    return limits[device].rate * copies[device], device


def at_once(stage: StageCost, use: float, lasting: float = 0.0) -> list[Beside]:
    """Each of a stage's workers, which compute for the share `use` of the time."""
    return [Beside(use, lasting)] * stage.workers


def other_work(device: Device, rate: float) -> list[Beside]:
    """The work on a device that is no stage's: as if done by as many as it keeps busy."""
    each = device.other_ms / 1e3
    use = rate * each + device.standing
    pieces = int(use) + 1
    return [Beside(use / pieces, each)] * pieces


def _limit(costs: Costs, name: str) -> Limit:
    device, stages = costs.devices[name], dict(costs.on(name))
    if not stages:
        return Limit((device.cores - device.standing) / max(device.other_ms / 1e3, 1e-9), "")
    alone = {stage: costed.workers / (costed.share * costed.least_work) for stage, costed in stages.items()}
    least, most = 0.0, min(alone.values())
    for _ in range(_HALVINGS):
        middle = (least + most) / 2
        least, most = (middle, most) if max(_uses(device, stages, middle).values()) < 1 else (least, middle)
    uses = _uses(device, stages, most)
    return Limit(least, max(uses, key=uses.__getitem__))


def _uses(device: Device, stages: Mapping[str, StageCost], rate: float) -> dict[str, float]:
    """The share of the time in which each stage's workers compute in full batches; 1 or more where they cannot."""
    work = {name: rate * stage.share * stage.least_work / stage.workers for name, stage in stages.items()}
    # A loop computes whenever anybody is in it, not in full batches alone.
    busy = {
        name: 1 - math.exp(-rate * stage.share * stage.lone_work) if stage.kind == "loop" else 0.0
        for name, stage in stages.items()
    }
    use = dict(work)
    for _ in range(_ROUNDS):
        before, use = use, {}
        for name, stage in stages.items():
            others = at_once(stage, before[name])[1:] + other_work(device, rate)
            for other, beside in stages.items():
                if other != name:
                    others += at_once(beside, max(busy[other], min(1.0, before[other] * _smaller(stages, beside))))
            use[name] = work[name] * stretch(device.cores, others).steady
        if all(abs(use[name] - before[name]) < _CLOSE for name in use):
            break
    return use


def _smaller(stages: Mapping[str, StageCost], beside: StageCost) -> float:
    """By which a queue's work is more than in its largest batches, where what it gets comes with each step of a loop on
    its device: what a full loop makes at once may be less than such a batch."""
    source = stages.get(beside.streams_from or "")
    if source is None or beside.kind == "loop":
        return 1.0
    pieces = min(beside.max_batch, max(1.0, source.max_batch * beside.steps / source.steps))
    return beside.steps * (beside.fixed / pieces + beside.per_row) / beside.least_work
