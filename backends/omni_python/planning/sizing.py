"""How many copies of each device a load needs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from omni_python.planning.capacity import device_limits
from omni_python.planning.costs import Costs
from omni_python.planning.prediction import Prediction, predict
from omni_python.proto.errors import InvalidArgument

Figure = Literal["first_text", "first_audio", "whole"]

_NO_BETTER = 0.995
_MOST_COPIES = 1000
_HARDLY = 1e-4


@dataclass(frozen=True)
class LatencyLimit:
    """The percentile of a latency may be at most `seconds`."""

    figure: Figure
    seconds: float

    def excess(self, prediction: Prediction) -> float:
        """What is predicted by what is allowed. Raises `InvalidArgument` where the pipeline has no such figure."""
        latency = getattr(prediction, self.figure)
        if latency is None:
            output = self.figure.removeprefix("first_")
            raise InvalidArgument(f"no stage of the costs has `output: {output}`, so there is no {_NAMES[self.figure]}")
        return float(latency.tail_ms / 1e3 / self.seconds)


_NAMES = {"first_text": "time to first text", "first_audio": "time to first audio", "whole": "time of a whole answer"}


def size(
    costs: Costs,
    rate: float,
    limits: Sequence[LatencyLimit],
    most_load: float,
    percentile: float,
    given: Mapping[str, int],
) -> Prediction:
    """The fewest copies of each device of which `rate` is at most the share `most_load` of what saturates them; and
    then, until every limit is kept, one more of what makes the worst latency the shortest. The numbers that are `given`
    stay.

    Raises `InvalidArgument` where those are too few, or more copies do not help.
    """
    copies = _enough(costs, rate, most_load, given)
    found = predict(costs, rate, copies, percentile)
    if _worst(limits, found) > 1:
        alone = predict(costs, rate * _HARDLY, copies, percentile)
        if _worst(limits, alone) > 1:
            raise InvalidArgument(_out_of_reach(limits, alone, "even of a lone request"))
    while (worst := _worst(limits, found)) > 1:
        tries = [
            predict(costs, rate, {**copies, device: copies[device] + 1}, percentile)
            for device in costs.devices
            if device not in given
        ]
        best = min(tries, key=lambda one: (_worst(limits, one), one.gpus), default=found)
        if _worst(limits, best) > worst * _NO_BETTER:
            numbers = ", ".join(f"{count} of {name}" for name, count in copies.items())
            raise InvalidArgument(_out_of_reach(limits, found, f"with {numbers}, of which more hardly help"))
        found, copies = best, {name: device.copies for name, device in best.devices.items()}
    return found


def _enough(costs: Costs, rate: float, most_load: float, given: Mapping[str, int]) -> dict[str, int]:
    copies = {}
    for device, limit in device_limits(costs).items():
        copies[device] = given.get(device, math.ceil(rate / (most_load * limit.rate)))
        if rate >= copies[device] * limit.rate:
            raise InvalidArgument(
                f"{rate:g} requests/s are too many for {copies[device]} of {device}, each of which saturates at "
                f"{limit.rate:.3g}/s, where {limit.stage} gives way"
            )
        if copies[device] > _MOST_COPIES:
            raise InvalidArgument(f"{rate:g} requests/s need more than {_MOST_COPIES} copies of {device}")
    return copies


def _worst(limits: Sequence[LatencyLimit], prediction: Prediction) -> float:
    return max((limit.excess(prediction) for limit in limits), default=0.0)


def _out_of_reach(limits: Sequence[LatencyLimit], found: Prediction, when: str) -> str:
    limit = max(limits, key=lambda one: one.excess(found))
    return (
        f"the {_NAMES[limit.figure]} cannot be kept to {limit.seconds * 1e3:g} ms: for {found.percentile:g} % of the "
        f"requests it is up to {limit.excess(found) * limit.seconds * 1e3:.0f} ms, {when}"
    )
