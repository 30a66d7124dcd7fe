"""How many copies of each device a load needs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from omni_python.planning.capacity import device_limits, saturation
from omni_python.planning.costs import Costs
from omni_python.planning.prediction import Prediction, predict
from omni_python.proto.errors import InvalidArgument

Figure = Literal["first_text", "first_audio", "whole"]

_NO_BETTER = 0.995
_MOST_COPIES = 4096


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
    at_least: Mapping[str, int],
) -> Prediction:
    """The fewest copies that a search finds which keep `rate` below the share `most_load` of the saturation, and every
    limit: of what saturates first, one more; then of what makes the worst latency the shortest, one more.

    Raises `InvalidArgument` where more copies do not help.
    """
    copies = {device: at_least.get(device, 1) for device in costs.devices}
    each = device_limits(costs)
    while True:
        most, weakest = saturation(each, copies)
        if rate <= most_load * most:
            break
        copies[weakest] += 1
        if copies[weakest] > _MOST_COPIES:
            raise InvalidArgument(f"{rate:g} requests/s need more than {_MOST_COPIES} copies of {weakest}")
    found = predict(costs, rate, copies, percentile)
    while (worst := _worst(limits, found)) > 1:
        tries = [predict(costs, rate, {**copies, device: copies[device] + 1}, percentile) for device in costs.devices]
        best = min(tries, key=lambda one: (_worst(limits, one), one.gpus))
        if _worst(limits, best) > worst * _NO_BETTER:
            raise InvalidArgument(_out_of_reach(limits, found))
        found, copies = best, {name: device.copies for name, device in best.devices.items()}
    return found


def _worst(limits: Sequence[LatencyLimit], prediction: Prediction) -> float:
    return max((limit.excess(prediction) for limit in limits), default=0.0)


def _out_of_reach(limits: Sequence[LatencyLimit], found: Prediction) -> str:
    limit = max(limits, key=lambda one: one.excess(found))
    copies = ", ".join(f"{one.copies} of {name}" for name, one in found.devices.items())
    return (
        f"the {_NAMES[limit.figure]} cannot be kept to {limit.seconds * 1e3:g} ms for {found.percentile:g} % of the "
        f"requests by more copies: with {copies} it is {limit.excess(found) * limit.seconds * 1e3:.0f} ms"
    )
