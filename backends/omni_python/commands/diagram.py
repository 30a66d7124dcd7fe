"""A pipeline's resolved topology as a drawing for terminals: a box for each Triton model, an arrow for each edge."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable
from dataclasses import dataclass

from omni_python.config.schema import PipelineConfig
from omni_python.config.topology import Edge, ProcessGroup, Topology, resolve_topology
from omni_python.relay.ways import explain

WIDTH = 100
"""Columns of the widest drawing; names are shortened to fit."""

_SHORT = {"by reference": "local", "in the message": "inline"}
_MARGINS = 15
"""Columns of a row that are neither names nor words: borders, the entry's mark, the arrow, and gaps."""


@dataclass(frozen=True)
class _Row:
    """One arrow. The name of its stage stands only at the first; `waits` replaces all else where a stage waits."""

    stage: str
    target: str = ""
    way: str = ""
    kind: str = ""
    waits: str = ""
    entry: bool = False


@dataclass(frozen=True)
class _Box:
    title: str
    place: str
    rows: tuple[tuple[_Row, ...], ...]
    """The rows of each stage."""


def draw(config: PipelineConfig) -> list[str]:
    """The lines of the drawing; equal configurations give equal ones."""
    topology = resolve_topology(config)
    entry = topology.group_of(topology.entry_stage)
    how = "submit, to the least loaded" if entry.replicas > 1 else "submit"
    submit = _Row("client", topology.entry_stage, "inline, shm", how)
    place = _at(topology.orchestrator_host, "CPU")
    boxes = [_Box(f"{topology.orchestrator_model} (orchestrator)", place, ((submit,),))]
    boxes += [_box(config, topology, group) for group in topology.groups]
    rows = [row for box in boxes for stage in box.rows for row in stage]
    words = max(len(row.way) for row in rows) + max(len(row.kind) for row in rows)
    names = max(8, (WIDTH - _MARGINS - words) // 2)
    columns = _Columns(
        stage=min(names, max(len(row.stage) for row in rows)),
        target=min(names, max(len(row.target) for row in rows)),
        way=max(len(row.way) for row in rows),
        kind=max(len(row.kind) for row in rows),
    )
    inside = max(columns.inside, *(min(WIDTH - 2, len(box.title) + len(box.place) + 8) for box in boxes))
    return [line for box in boxes for line in _drawn(box, columns, inside)]


@dataclass(frozen=True)
class _Columns:
    stage: int
    target: int
    way: int
    kind: int

    @property
    def inside(self) -> int:
        """Columns between a box's borders."""
        return _MARGINS - 2 + self.stage + self.target + self.way + self.kind


def _box(config: PipelineConfig, topology: Topology, group: ProcessGroup) -> _Box:
    title = group.triton_model if group.replicas == 1 else f"{group.triton_model}, {group.replicas} replicas"
    rows = tuple(tuple(_rows(config, topology, name)) for name in group.stages)
    return _Box(title, _at(group.host, _place(group)), rows)


def _at(host: str, place: str) -> str:
    return f"{host}: {place}" if host else place


def _place(group: ProcessGroup) -> str:
    """Ranks are joined by `+`, replicas by `|`, equal ones named once."""
    if group.gpu is None:
        return "CPU" if group.tp_size == 1 else f"CPU, {group.tp_size} ranks"
    return "GPU " + " | ".join(dict.fromkeys("+".join(map(str, gpus)) for gpus in group.replica_gpus))


def _rows(config: PipelineConfig, topology: Topology, name: str) -> Iterable[_Row]:
    stage = config.stage(name)
    entry = name == topology.entry_stage
    if stage.wait_for:
        yield _Row(name, waits=", ".join(stage.wait_for) + (", as needed" if stage.wait_for_fn else ""), entry=entry)
    by_target: dict[str, list[Edge]] = {}
    for edge in topology.edges_from(name):
        by_target.setdefault(edge.target, []).append(edge)
    for target, edges in by_target.items():
        kinds = [_kind(edge, stage.route_fn is not None) for edge in edges]
        ways = dict.fromkeys(_SHORT.get(way.relay, way.relay) for way in explain(config, topology, edges[0]))
        yield _Row(name, target, ", ".join(ways), " + ".join(kinds), entry=entry)
    if stage.terminal:
        yield _Row(name, "client", "inline, shm", "answer", entry=entry)


def _kind(edge: Edge, routed: bool) -> str:
    if edge.kind == "stream":
        return "stream"
    return "result as needed" if routed else "result"


def _drawn(box: _Box, columns: _Columns, inside: int) -> Iterable[str]:
    place = _fit(box.place, inside - 12)
    title = _fit(box.title, inside - len(place) - 6)
    yield f"┌─ {title} {'─' * (inside - len(title) - len(place) - 6)} {place} ─┐"
    for stage in box.rows:
        for index, row in enumerate(stage):
            for line in _row_lines(row, index, len(stage), columns, inside):
                yield f"│{line.ljust(inside)}│"
    yield f"└{'─' * inside}┘"


def _row_lines(row: _Row, index: int, count: int, columns: _Columns, inside: int) -> Iterable[str]:
    name = _fit(row.stage, columns.stage).ljust(columns.stage) if index == 0 else " " * columns.stage
    mark = "▶" if row.entry and index == 0 else " "
    fork = "─" if count == 1 else "┬" if index == 0 else "└" if index == count - 1 else "├"
    if not row.waits:
        way, kind = row.way.ljust(columns.way), row.kind.ljust(columns.kind)
        yield f" {mark}{name} {fork}──▶ {_fit(row.target, columns.target).ljust(columns.target)}  {way}  {kind}"
        return
    start = f" {mark}{name} {fork}◀── "
    first, *others = textwrap.wrap(f"waits for {row.waits}", inside - len(start) - 1)
    yield start + first
    for line in others:
        yield f"  {' ' * columns.stage} {'│' if count > 1 else ' '}    {line}"


def _fit(text: str, width: int) -> str:
    """`text` without its middle where it is longer."""
    if len(text) <= width:
        return text
    end = (width - 1) // 2
    return f"{text[: width - 1 - end]}…{text[len(text) - end :]}"
