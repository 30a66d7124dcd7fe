"""What a pipeline's stages cost: the file that `omni plan --measure` writes and `omni plan` reads."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

import msgspec
import yaml

from omni_python.config.errors import ConfigError, Problem, config_error, did_you_mean, listed

HOST = "host"
"""The device of stages that compute on the CPU, in files that are written here."""


class Device(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, kw_only=True):
    """What stages compute on. A copy of it has a copy of each of its stages: it is the unit of which a plan has more.

    A copy has so many `gpus`: 0 for cores of a CPU, 2 and more for a stage that tensor parallelism spreads over them.
    `cores` steps run at full speed side by side: 1 on a GPU, whose streams share it. `other_ms` is the work of a
    request on it outside all stages, such as the server's own, and `standing` the cores that it uses with requests or
    without, for signs of life and metrics. `memory_gib` is that of one GPU.
    """

    gpus: int = 0
    cores: float = 1.0
    memory_gib: float | None = None
    other_ms: float = 0.0
    standing: float = 0.0


class StageCost(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, kw_only=True):
    """A step that computes k requests at once takes `fixed_ms + k * per_row_ms`, at most `max_batch` of them.

    A `queue` computes what waits, each step for itself: preprocessing, encoders, windows of a vocoder. A `loop` keeps
    its requests and computes them all again and again, the continuous batching of autoregressive stages: a request's
    first step (its prompt's) takes `first_ms` beside the others', and `steps` counts that one too.

    `steps_cv` is the standard deviation of a request's steps by their mean, `cv` that of a queue's time for one.
    `share` is the part of the requests that come by. A stage begins when the results of all of `after` are there, and
    `needs` steps of the loop `streams_from`. `output` tells what clients get of it.
    """

    device: str
    fixed_ms: float
    kind: Literal["queue", "loop"] = "queue"
    per_row_ms: float = 0.0
    first_ms: float | None = None
    steps: float = 1.0
    steps_cv: float = 0.0
    cv: float = 0.0
    max_batch: int = 1
    workers: int = 1
    share: float = 1.0
    after: list[str] = []
    streams_from: str | None = None
    needs: float = 1.0
    output: Literal["text", "audio"] | None = None
    memory_gib: float = 0.0

    @property
    def fixed(self) -> float:
        """Seconds."""
        return self.fixed_ms / 1e3

    @property
    def per_row(self) -> float:
        """Seconds."""
        return self.per_row_ms / 1e3

    @property
    def first(self) -> float:
        """Seconds of a loop's first step."""
        return self.fixed + self.per_row if self.first_ms is None else self.first_ms / 1e3

    @property
    def lone_work(self) -> float:
        """Seconds of a request that comes by and has every step for itself."""
        step = self.fixed + self.per_row
        return self.first + (self.steps - 1) * step if self.kind == "loop" else self.steps * step

    @property
    def least_work(self) -> float:
        """Seconds of a request that comes by, in the largest batches."""
        step = self.fixed / self.max_batch + self.per_row
        return self.first + (self.steps - 1) * step if self.kind == "loop" else self.steps * step


class Alone(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, kw_only=True):
    """What a client measured whose request was the only one: what is on the way between stages is in it."""

    first_text_ms: float | None = None
    first_audio_ms: float | None = None
    whole_ms: float | None = None


class Costs(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, kw_only=True):
    """`about` says where the figures come from. Stages stand after those that they wait for."""

    devices: dict[str, Device]
    stages: dict[str, StageCost]
    pipeline: str = ""
    about: str = ""
    alone: Alone = Alone()

    def on(self, device: str) -> Iterator[tuple[str, StageCost]]:
        """The stages of a device."""
        return ((name, stage) for name, stage in self.stages.items() if stage.device == device)

    def share_core(self, name: str, other: str) -> bool:
        """Whether one core, or one GPU, is all that two stages have."""
        device = self.stages[name].device
        return device == self.stages[other].device and self.devices[device].cores == 1

    def streams_to(self, name: str) -> set[str]:
        """The stages that what a stage streams comes to, by way of others or not."""
        found: set[str] = set()
        for other, stage in self.stages.items():
            if stage.streams_from is not None and (stage.streams_from == name or stage.streams_from in found):
                found.add(other)
        return found

    def feeder(self, name: str) -> str | None:
        """The nearest queue on its device that a loop's requests come from, by way of others or not."""
        stage = self.stages[name]
        if stage.kind == "queue":
            return None
        before = list(stage.after)
        for other in before:
            if self.stages[other].device == stage.device and self.stages[other].kind == "queue":
                return other
            before += self.stages[other].after
        return None

    def placed(self, places: Mapping[str, str]) -> Costs:
        """The same with some stages on other devices, by stage. Raises `ConfigError`."""
        unknown = [
            Problem("--place", _unknown("stage", name, self.stages)) for name in places if name not in self.stages
        ]
        if unknown:
            raise ConfigError(unknown)
        stages = {
            name: msgspec.structs.replace(stage, device=places.get(name, stage.device))
            for name, stage in self.stages.items()
        }
        given = {**self.devices}
        gpu = next((device for device in self.devices.values() if device.gpus), Device(gpus=1))
        for device in places.values():
            given.setdefault(device, gpu)
        used = {stage.device for stage in stages.values()}
        made = msgspec.structs.replace(
            self, stages=stages, devices={name: device for name, device in given.items() if name in used}
        )
        check_costs(made)
        return made


def load_costs(path: Path) -> Costs:
    """Read a file, YAML or JSON. Raises `ConfigError` with everything that is wrong with it."""
    try:
        costs = msgspec.yaml.decode(path.read_bytes(), type=Costs)
    except OSError as error:
        raise config_error(str(path), f"cannot be read: {error.strerror}") from None
    except (msgspec.ValidationError, msgspec.DecodeError, yaml.YAMLError) as error:
        raise config_error(str(path), " ".join(str(error).split())) from None
    check_costs(costs)
    return costs


def dump_costs(costs: Costs) -> str:
    """The YAML text of the file, a line for each device and stage, without what is as by default."""
    plain: dict[str, Any] = {"pipeline": costs.pipeline, "about": costs.about}
    if costs.alone != Alone():
        plain["alone"] = _changed(costs.alone)
    plain["devices"] = {name: _changed(device) for name, device in costs.devices.items()}
    plain["stages"] = {name: _changed(stage) for name, stage in costs.stages.items()}
    # Mappings of plain values alone stand in one line each.
    text: str = yaml.safe_dump(plain, sort_keys=False, width=10_000, default_flow_style=None)
    return text


def _changed(struct: msgspec.Struct) -> dict[str, Any]:
    defaults = {field.name: field.default for field in msgspec.structs.fields(struct)}
    defaults |= {"after": []}
    return {name: value for name, value in msgspec.structs.asdict(struct).items() if value != defaults[name]}


def check_costs(costs: Costs) -> None:
    """Raises `ConfigError` with every figure that cannot be, and every name that is not there."""
    problems = [
        *_device_problems(costs),
        *(problem for name in costs.stages for problem in _stage_problems(costs, name)),
    ]
    if not costs.stages:
        problems.append(Problem("stages", "is empty: there is nothing to plan"))
    if not problems:
        problems = [*_order_problems(costs), *_memory_problems(costs)]
    if problems:
        raise ConfigError(problems)


def _device_problems(costs: Costs) -> Iterator[Problem]:
    for name, device in costs.devices.items():
        path = f"devices.{name}"
        if not (device.cores >= 1 and math.isfinite(device.cores)):
            yield Problem(f"{path}.cores", f"must be at least 1, not {device.cores:g}")
        if device.gpus < 0:
            yield Problem(f"{path}.gpus", f"must not be negative, not {device.gpus}")
        if not (device.other_ms >= 0 and math.isfinite(device.other_ms)):
            yield Problem(f"{path}.other_ms", f"must not be negative, not {device.other_ms:g}")
        if not 0 <= device.standing < device.cores:
            yield Problem(f"{path}.standing", f"must be at least 0 and less than its cores, not {device.standing:g}")
        if device.memory_gib is not None and not device.memory_gib > 0:
            yield Problem(f"{path}.memory_gib", f"must be above 0, not {device.memory_gib:g}")


def _stage_problems(costs: Costs, name: str) -> Iterator[Problem]:
    stage, path = costs.stages[name], f"stages.{name}"
    for field in ("fixed_ms", "per_row_ms", "first_ms", "steps_cv", "cv", "memory_gib"):
        value = getattr(stage, field)
        if value is not None and not (value >= 0 and math.isfinite(value)):
            yield Problem(f"{path}.{field}", f"must be a number of at least 0, not {value:g}")
    for field in ("steps", "max_batch", "workers", "needs"):
        value = getattr(stage, field)
        if not (value >= 1 and math.isfinite(value)):
            yield Problem(f"{path}.{field}", f"must be at least 1, not {value:g}")
    if not 0 < stage.share <= 1:
        yield Problem(f"{path}.share", f"must be above 0 and at most 1, not {stage.share:g}")
    if stage.fixed_ms == stage.per_row_ms == 0:
        yield Problem(f"{path}.fixed_ms", "and per_row_ms are both 0: what a step takes is missing")
    if stage.kind == "loop" and stage.workers > 1:
        yield Problem(f"{path}.workers", "is for a queue; a loop computes one step at a time")
    if stage.kind == "queue" and stage.first_ms is not None:
        yield Problem(f"{path}.first_ms", "is for a loop (kind: loop)")
    if stage.device not in costs.devices:
        yield Problem(f"{path}.device", _unknown("device", stage.device, costs.devices))
    for source in (*stage.after, *filter(None, [stage.streams_from])):
        field = "streams_from" if source == stage.streams_from else "after"
        if source not in costs.stages:
            yield Problem(f"{path}.{field}", _unknown("stage", source, costs.stages))
        elif field == "streams_from" and costs.stages[source].kind != "loop":
            yield Problem(f"{path}.{field}", f"must name a loop, and {source!r} is a queue; name it in `after`")


def _order_problems(costs: Costs) -> Iterator[Problem]:
    seen: set[str] = set()
    for name, stage in costs.stages.items():
        late = [one for one in (*stage.after, *filter(None, [stage.streams_from])) if one not in seen]
        if late:
            yield Problem(f"stages.{name}", f"must stand after what it waits for: {listed(late)}")
        seen.add(name)


def _memory_problems(costs: Costs) -> Iterator[Problem]:
    for name, device in costs.devices.items():
        needed = sum(stage.memory_gib for _, stage in costs.on(name))
        if device.memory_gib is not None and needed > device.memory_gib * max(1, device.gpus):
            stages = listed(stage for stage, _ in costs.on(name))
            yield Problem(
                f"devices.{name}", f"has {device.memory_gib:g} GiB, and {stages} need {needed:g}: move one elsewhere"
            )


def _unknown(what: str, name: str, known: Mapping[str, object]) -> str:
    return f"there is no {what} {name!r}{did_you_mean(name, known)} (there are {listed(known)})"
