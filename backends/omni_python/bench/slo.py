"""Objectives for a single request; goodput counts those that meet all."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from omni_python.bench.record import RequestRecord
from omni_python.proto.errors import InvalidArgument

_FIGURES: dict[str, Callable[[RequestRecord], float | None]] = {
    "ttft": operator.attrgetter("first_text"),
    "ttfa": operator.attrgetter("first_audio"),
    "gap": operator.attrgetter("longest_gap"),
    "total": operator.attrgetter("total"),
    "underrun": operator.attrgetter("underrun"),
    "rtf": operator.attrgetter("real_time_factor"),
}
_UNITS = {"ms": 1e-3, "s": 1.0}
_FORM = re.compile(r"(?P<name>[a-z]+)=(?P<value>\d+(\.\d+)?)(?P<unit>ms|s)?")
_HELP = "for example ttfa=300ms, gap=0.2s or rtf=0.8"


@dataclass(frozen=True)
class Objective:
    """A figure that may be at most `limit`: seconds, or a plain number for the real-time factor."""

    name: str
    limit: float

    def is_met(self, record: RequestRecord) -> bool:
        """False also where the answer has no such figure, such as the first audio of a text."""
        value = _FIGURES[self.name](record)
        return value is not None and value <= self.limit


def parse_objectives(texts: Sequence[str]) -> tuple[Objective, ...]:
    """Objectives as they are written, with commas between those of one text. Raises `InvalidArgument`."""
    return tuple(_objective(part.strip()) for text in texts for part in text.split(","))


def is_good(record: RequestRecord, objectives: Sequence[Objective]) -> bool:
    return not record.error and all(objective.is_met(record) for objective in objectives)


def _objective(text: str) -> Objective:
    form = _FORM.fullmatch(text)
    if form is None or form["name"] not in _FIGURES:
        raise InvalidArgument(f"an objective is one of {', '.join(_FIGURES)} with its limit, {_HELP}; not {text!r}")
    if (form["unit"] is None) is not (form["name"] == "rtf"):
        raise InvalidArgument(f"an objective has a unit (ms or s), and rtf has none, {_HELP}; not {text!r}")
    return Objective(form["name"], float(form["value"]) * _UNITS.get(form["unit"], 1.0))
