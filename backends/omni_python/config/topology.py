"""What a declaration comes to: process groups, the Triton model of each, and the edges between stages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from omni_python.config.declaration import PipelineDeclaration, StageConfig


@dataclass(frozen=True)
class ProcessGroup:
    """The stages of one process, which is one Triton model.

    `gpus` is empty on the CPU; else it holds the process's GPU, or for a tensor-parallel stage the GPU of each rank.
    """

    name: str
    stages: tuple[str, ...]
    gpus: tuple[int, ...]
    tp_size: int
    triton_model: str

    @property
    def gpu(self) -> int | None:
        """The GPU of the process that Triton starts (rank 0), None on the CPU."""
        return self.gpus[0] if self.gpus else None

    @property
    def rank_processes(self) -> tuple[str, ...]:
        """Names of the processes: the group's own, or one for each tensor-parallel rank."""
        return (self.name,) if self.tp_size == 1 else tuple(f"{self.name}_tp{rank}" for rank in range(self.tp_size))


@dataclass(frozen=True)
class Edge:
    """`kind`: "next" carries results, "stream" carries chunks."""

    source: str
    target: str
    kind: Literal["next", "stream"]
    same_process: bool


@dataclass(frozen=True)
class Topology:
    """`orchestrator_model` is the Triton model that clients call; groups and edges are in the order of the stages."""

    pipeline: str
    orchestrator_model: str
    entry_stage: str
    terminal_stages: tuple[str, ...]
    groups: tuple[ProcessGroup, ...]
    edges: tuple[Edge, ...]

    def group_of(self, stage: str) -> ProcessGroup:
        """The process group that runs `stage`; raises KeyError for an unknown stage."""
        for group in self.groups:
            if stage in group.stages:
                return group
        raise KeyError(stage)

    def edges_from(self, stage: str) -> tuple[Edge, ...]:
        return tuple(edge for edge in self.edges if edge.source == stage)

    def edges_to(self, stage: str) -> tuple[Edge, ...]:
        return tuple(edge for edge in self.edges if edge.target == stage)


def resolve_topology(config: PipelineDeclaration) -> Topology:
    """The topology of a valid configuration."""
    groups = process_groups(config)
    process_of = {stage: group.name for group in groups for stage in group.stages}
    edges: list[Edge] = []
    for stage in config.stages:
        source, process = stage.name, process_of[stage.name]
        edges += [Edge(source, target, "next", process == process_of[target]) for target in stage.next_stages]
        edges += [Edge(source, target, "stream", process == process_of[target]) for target in stage.stream_to]
    return Topology(
        pipeline=config.resolved_name,
        orchestrator_model=config.resolved_name,
        entry_stage=config.resolved_entry_stage,
        terminal_stages=config.terminal_stages,
        groups=groups,
        edges=tuple(edges),
    )


def process_groups(config: PipelineDeclaration) -> tuple[ProcessGroup, ...]:
    """The process groups, in the order of their first stages, after joining those that `fused_stages` connects."""
    return tuple(
        ProcessGroup(
            name=process,
            stages=tuple(stage.name for stage in stages),
            gpus=next((stage.gpus for stage in stages if stage.gpus), ()),
            tp_size=max(stage.tp_size for stage in stages),
            triton_model=f"{config.resolved_name}_{process}",
        )
        for process, stages in _stages_by_process(config.stages, config.fused_stages).items()
    )


def _stages_by_process(stages: Sequence[StageConfig], fused: Sequence[Sequence[str]]) -> dict[str, list[StageConfig]]:
    """The stages of each process. A joined process keeps the name of the process of its first stage."""
    label = {stage.process_name: stage.process_name for stage in stages}
    process_of = {stage.name: stage.process_name for stage in stages}
    for group in fused:
        joined = {label[process_of[name]] for name in group if name in process_of}
        for process, current in label.items():
            if current in joined:
                label[process] = min(joined)
    members: dict[str, list[StageConfig]] = {}
    for stage in stages:
        members.setdefault(label[stage.process_name], []).append(stage)
    return {group[0].process_name: group for group in members.values()}
