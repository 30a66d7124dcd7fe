"""What a declaration comes to: process groups, the Triton model of each, and the edges between stages."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from omni_python.config.declaration import PipelineDeclaration, StageConfig


@dataclass(frozen=True)
class ProcessGroup:
    """The stages of one process, which is one Triton model with an instance for each replica.

    `replica_gpus` holds for each replica its GPU, or for a tensor-parallel stage the GPU of each rank; nothing on the
    CPU. `host` is "" for a pipeline on one host.
    """

    name: str
    stages: tuple[str, ...]
    replica_gpus: tuple[tuple[int, ...], ...]
    tp_size: int
    triton_model: str
    host: str = ""

    @property
    def replicas(self) -> int:
        """How many processes, or groups of ranks, run side by side."""
        return len(self.replica_gpus)

    @property
    def gpus(self) -> tuple[int, ...]:
        """The GPUs of the first replica."""
        return self.replica_gpus[0]

    @property
    def gpu(self) -> int | None:
        """The GPU of the first process that Triton starts (rank 0), None on the CPU."""
        return self.gpu_of(0)

    def gpu_of(self, replica: int) -> int | None:
        """The GPU of a replica (its rank 0), None on the CPU."""
        gpus = self.replica_gpus[replica]
        return gpus[0] if gpus else None

    def replica_name(self, replica: int) -> str:
        return replica_name(self.name, replica, self.replicas)

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
    orchestrator_host: str = ""

    def on_host(self, host: str) -> tuple[ProcessGroup, ...]:
        """The process groups of a host; all for "", a pipeline on one."""
        return tuple(group for group in self.groups if group.host == host)

    def group_of(self, stage: str) -> ProcessGroup:
        """The process group that runs `stage`; raises KeyError for an unknown stage."""
        for group in self.groups:
            if stage in group.stages:
                return group
        raise KeyError(stage)

    def edges_from(self, stage: str) -> tuple[Edge, ...]:
        """Those by which a stage sends."""
        return tuple(edge for edge in self.edges if edge.source == stage)

    def edges_to(self, stage: str) -> tuple[Edge, ...]:
        """Those by which a stage receives."""
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
        orchestrator_host=config.resolved_orchestrator_host,
    )


def process_groups(config: PipelineDeclaration) -> tuple[ProcessGroup, ...]:
    """The process groups, in the order of their first stages, after joining those that `fused_stages` connects."""
    return tuple(
        ProcessGroup(
            name=process,
            stages=tuple(stage.name for stage in stages),
            replica_gpus=_replica_gpus(stages),
            tp_size=max(stage.tp_size for stage in stages),
            triton_model=f"{config.resolved_name}_{process}",
            host=config.host_of(stages[0]),
        )
        for process, stages in _stages_by_process(config.stages, config.fused_stages).items()
    )


def replica_name(process: str, replica: int, replicas: int) -> str:
    """How messages and diagrams call one of the `replicas` of a process: `thinker@1`; an only one by the process."""
    return f"{process}@{replica}" if replicas > 1 else process


def replica_of_instance(instance_name: str) -> int:
    """The replica that a Triton instance is; 0 for that of a process with but one."""
    match = re.search(r"_r(\d+)_0$", instance_name)
    return int(match[1]) if match else 0


def _replica_gpus(stages: Sequence[StageConfig]) -> tuple[tuple[int, ...], ...]:
    on_gpu = next((stage for stage in stages if stage.gpus), stages[0])
    return tuple(on_gpu.replica_gpus(replica) for replica in range(max(stage.replicas for stage in stages)))


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
