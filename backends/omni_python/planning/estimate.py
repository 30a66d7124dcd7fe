"""From what was observed of a server to what its stages cost."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Literal

import numpy as np

from omni_python.planning.costs import HOST, Alone, Costs, Device, StageCost, check_costs
from omni_python.planning.observation import Answered, Level
from omni_python.planning.overlaps import shares_of_device
from omni_python.planning.server_metrics import Batches, ServerMetrics
from omni_python.proto.errors import Unavailable
from omni_python.proto.trace import CLIENT, ORCHESTRATOR, Lane

_GIB = 2**30
_DIGITS = 4


def estimate(levels: Sequence[Level], metrics: ServerMetrics, pipeline: str, cores: float, about: str) -> Costs:
    """The costs of the stages that took part. The first level must be of one client: what it saw is the graph, and what
    a step takes alone; the others tell what larger batches take.

    Times are cut to what the stage had of its GPU beside others, or its process of a core, where that is known; and
    what the processes used beyond their stages' steps is the host's `other_ms`. Raises `Unavailable` where no request
    was answered.
    """
    alone = levels[0]
    if not alone.answers:
        raise Unavailable("no request was answered: nothing was measured")
    stages = _in_order(alone.answers)
    shares = [_shares(level, metrics, stages) for level in levels]
    costs = Costs(
        pipeline=pipeline,
        about=about,
        alone=Alone(
            first_text_ms=_median_ms(one.first_text for one in alone.answers),
            first_audio_ms=_median_ms(one.first_audio for one in alone.answers),
            whole_ms=_median_ms(one.whole for one in alone.answers),
        ),
        devices=_devices(levels, shares, metrics, stages, cores),
        stages={stage: _stage(levels, shares, metrics, stage) for stage in stages},
    )
    check_costs(costs)
    return costs


def _in_order(answers: Sequence[Answered]) -> list[str]:
    """All stages, each after those that send to it."""
    edges = {(source, target) for source, target, _ in _edges(answers)}
    left = dict.fromkeys(lane.stage for one in answers for lane in one.trace.lanes if lane.stage != ORCHESTRATOR)
    found: list[str] = []
    while left:
        ready = [stage for stage in left if not any((source, stage) in edges for source in left)]
        if not ready:
            raise Unavailable(f"the traces have stages that wait for each other: {', '.join(left)}")
        found += ready
        left = {stage: None for stage in left if stage not in ready}
    return found


def _edges(answers: Sequence[Answered]) -> Iterator[tuple[str, str, bool]]:
    """Source, target, and whether it is a stream."""
    for one in answers:
        for hop in one.trace.hops:
            if not {hop.source, hop.target} & {ORCHESTRATOR, CLIENT}:
                yield hop.source, hop.target, hop.stream


def _stage(
    levels: Sequence[Level], shares: Sequence[Mapping[str, float]], metrics: ServerMetrics, name: str
) -> StageCost:
    alone = levels[0]
    lanes = _lanes(alone, name)
    kind: Literal["queue", "loop"] = "loop" if name in metrics.loops else "queue"
    streams = {source for source, target, stream in _edges(alone.answers) if stream and target == name}
    streams &= metrics.loops  # only the steps of a loop make pieces one after the other
    results = {source for source, target, stream in _edges(alone.answers) if not stream and target == name} - streams
    source = min(streams, default=None)
    first = statistics.median(map(_until_first, lanes)) * shares[0][name] if kind == "loop" else 0
    fixed, per_row = _fit(
        [
            _step(level, metrics, name, first, had[name])
            for level, had in zip(levels, shares, strict=True)
            if _lanes(level, name)
        ]
    )
    steps = [_steps(lane) for lane in lanes]
    busy = [_busy(lane) for lane in lanes]
    # Batches larger than any that was seen are not known to be possible.
    most = max(level.clients for level in levels) if kind == "loop" else _largest_batch(levels, name)
    return StageCost(
        device=_device(metrics, name),
        kind=kind,
        fixed_ms=_ms(fixed),
        per_row_ms=_ms(per_row),
        first_ms=_ms(first) if kind == "loop" else None,
        steps=round(max(1.0, _rows_per_request(alone, name)), 2),
        steps_cv=_cv(steps) if kind == "loop" else 0.0,
        cv=_cv(busy) if kind == "queue" else 0.0,
        max_batch=most,
        share=round(len(lanes) / len(alone.answers), 4),
        after=sorted(results),
        streams_from=source,
        needs=_needs(alone, name, source) if source is not None else 1.0,
        output=_output(alone, name),
        memory_gib=round(metrics.memory.get(name, 0.0) / _GIB, 3),
    )


def _lanes(level: Level, stage: str) -> list[Lane]:
    return [lane for one in level.answers for lane in one.trace.lanes if lane.stage == stage]


def _busy(lane: Lane) -> float:
    return sum(span.busy for span in lane.spans)


def _steps(lane: Lane) -> int:
    return sum(span.steps for span in lane.spans)


def _until_first(lane: Lane) -> float:
    """Seconds of computing up to the first output."""
    first = lane.end if lane.first is None else lane.first
    idle = sum(max(0.0, min(span.end, first) - span.start) for span in lane.spans if span.kind != "compute")
    return max(0.0, first - lane.start - idle)


def _rows_per_request(level: Level, stage: str) -> float:
    """Steps of a request that comes by: as the stage counts its batches, or its trace the steps."""
    lanes, done = _lanes(level, stage), level.batches.get(stage, Batches())
    return done.rows / len(lanes) if done.rows else statistics.fmean(map(_steps, lanes))


def _step(level: Level, metrics: ServerMetrics, stage: str, first: float, had: float) -> tuple[float, float]:
    """A batch and the seconds of its steps, without a loop's first ones: those that a request was in on average. Where
    the CPU time of the stage's process is known, those of all steps: that time is a sum over steps, and larger batches,
    beside which more goes on, are cut the more."""
    lanes, done = _lanes(level, stage), level.batches.get(stage, Batches())
    rows = _rows_per_request(level, stage) * len(lanes)
    by_cpu = had < 1 and stage not in metrics.gpus and done.steps > 0
    batch = 1.0 if not done.rows else done.rows / done.steps if by_cpu else done.squares / done.rows
    number = done.steps if by_cpu else rows
    busy = (_wall(level, stage) if by_cpu else sum(map(_busy, lanes))) * had
    if stage in metrics.loops and number > len(lanes):
        busy, number = max(busy - first * len(lanes), 0.1 * busy), number - len(lanes)
        batch = max(1.0, (rows - len(lanes)) / number) if by_cpu else batch
    return batch, busy / max(number, 1.0)


def _shares(level: Level, metrics: ServerMetrics, stages: Sequence[str]) -> dict[str, float]:
    """What each stage had of a GPU, or its process of a core, while it computed; 1 where that is not known."""
    shares = dict.fromkeys(stages, 1.0)
    traces = [one.trace for one in level.answers]
    for gpu in set(metrics.gpus.values()):
        shares |= shares_of_device(traces, [stage for stage in stages if metrics.gpus.get(stage) == gpu])
    processes = {lane.stage: lane.process for trace in traces for lane in trace.lanes}
    for process in set(processes.values()):
        computing = [stage for stage in stages if processes.get(stage) == process and stage not in metrics.gpus]
        used = level.cpu.get(f"{traces[0].pipeline}_{process}")
        took = sum(_wall(level, stage) for stage in computing)
        if used is not None and took and len(computing) == list(processes.values()).count(process):
            shares |= dict.fromkeys(computing, min(1.0, used / took))
    return shares


def _wall(level: Level, stage: str) -> float:
    """Seconds in which a stage computed: a batch's once."""
    done = level.batches.get(stage, Batches())
    busy = sum(map(_busy, _lanes(level, stage)))
    return busy * done.rows / done.squares if done.squares else busy


def _fit(points: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """`fixed` and `per_row` of the line through batches and seconds; neither is negative."""
    batches, seconds = np.array(points).T
    spread = batches - batches.mean()
    slope = float(spread @ seconds / (spread @ spread)) if (spread @ spread) > 1e-6 else 0.0
    slope = min(max(slope, 0.0), float(seconds.mean() / batches.mean()))
    fixed = float(seconds.mean() - slope * batches.mean())
    return max(fixed, 0.0), slope


def _needs(alone: Level, stage: str, source: str) -> float:
    """Steps of the source before the stage's first one: by when its first output came."""
    found = []
    for one in alone.answers:
        lanes = {lane.stage: lane for lane in one.trace.lanes}
        mine, theirs = lanes.get(stage), lanes.get(source)
        if mine is None or theirs is None or mine.first is None or theirs.first is None:
            continue
        steps = max(1, _steps(theirs) - 1)
        pace = (theirs.end - theirs.first) / steps
        step = _busy(mine) / max(1, _steps(mine))
        found.append(1 + min(steps, max(0, round((mine.first - step - theirs.first) / pace))) if pace > 0 else 1)
    return float(statistics.median(found)) if found else 1.0


def _output(alone: Level, stage: str) -> Literal["text", "audio"] | None:
    """What clients get of a stage: what begins for them when it has its first output."""
    sends = any(hop.source == stage and hop.target == ORCHESTRATOR for one in alone.answers for hop in one.trace.hops)
    firsts = [lane.first for lane in _lanes(alone, stage) if lane.first is not None]
    if not sends or not firsts:
        return None
    at = statistics.median(firsts)
    text, audio = (
        _median_ms(one.first_text for one in alone.answers),
        _median_ms(one.first_audio for one in alone.answers),
    )
    if text is None or audio is None:
        return "text" if audio is None and text is not None else "audio" if audio is not None else None
    return "text" if abs(at * 1e3 - text) <= abs(at * 1e3 - audio) else "audio"


def _devices(
    levels: Sequence[Level],
    shares: Sequence[Mapping[str, float]],
    metrics: ServerMetrics,
    stages: Sequence[str],
    cores: float,
) -> dict[str, Device]:
    on_host = [stage for stage in stages if stage not in metrics.gpus]
    other, standing = _other_work(levels, shares, on_host)
    memory = None if metrics.gpu_bytes is None else round(metrics.gpu_bytes / _GIB, 1)
    names = dict.fromkeys(_device(metrics, stage) for stage in stages)
    made = {name: Device(gpus=1, memory_gib=memory) for name in names if name != HOST}
    if not (on_host or other or standing):
        return made
    return {HOST: Device(cores=cores, other_ms=_ms(other), standing=round(standing, _DIGITS)), **made}


def _other_work(
    levels: Sequence[Level], shares: Sequence[Mapping[str, float]], on_host: Sequence[str]
) -> tuple[float, float]:
    """CPU seconds of a request beyond the stages' steps, and those of each second: what a level used for all of its
    requests grows with their number and with the time that they took (least squares, neither negative)."""
    used, work = [], []
    for level, had in zip(levels, shares, strict=True):
        if level.cpu:
            computed = sum(_wall(level, stage) * had[stage] for stage in on_host)
            used.append(max(0.0, sum(level.cpu.values()) - computed) / len(level.answers))
            work.append((1.0, level.seconds / len(level.answers)))
    if not used:
        return 0.0, 0.0
    if len(used) > 1:
        (other, standing), *_ = np.linalg.lstsq(np.array(work), np.array(used), rcond=None)
        if other >= 0 and standing >= 0:
            return float(other), float(standing)
        if other < 0:
            return 0.0, statistics.fmean(one / seconds for one, (_, seconds) in zip(used, work, strict=True))
    return statistics.fmean(used), 0.0


def _device(metrics: ServerMetrics, stage: str) -> str:
    return f"gpu{metrics.gpus[stage]}" if stage in metrics.gpus else HOST


def _largest_batch(levels: Sequence[Level], stage: str) -> int:
    return max((span.batch for level in levels for lane in _lanes(level, stage) for span in lane.spans), default=1) or 1


def _cv(values: Sequence[float]) -> float:
    mean = statistics.fmean(values)
    return round(statistics.pstdev(values) / mean, 3) if mean else 0.0


def _median_ms(values: Iterable[float | None]) -> float | None:
    found = [value for value in values if value is not None]
    return _ms(statistics.median(found)) if found else None


def _ms(seconds: float) -> float:
    return round(seconds * 1e3, _DIGITS)
