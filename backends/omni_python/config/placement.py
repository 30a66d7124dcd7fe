"""The rules of placement: GPUs, tensor parallelism, and processes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from omni_python.config.declaration import PipelineDeclaration, StageConfig
from omni_python.config.errors import Problem, listed
from omni_python.config.topology import ProcessGroup, process_groups


def stage_arguments(config: PipelineDeclaration, stage: StageConfig) -> dict[str, Any]:
    """The stage's `factory_args` with its `runtime_overrides` on top."""
    return {**stage.factory_args, **config.runtime_overrides.get(stage.name, {})}


def check_gpus(stage: StageConfig, path: str) -> Iterator[Problem]:
    """What is wrong with the GPUs and the process of one stage."""
    size, replicas = stage.tp_size, stage.replicas
    if size == 1 and stage.process is None:
        yield Problem(
            f"{path}.process", f"is required: name the process that runs this stage, for example {stage.name!r}"
        )
    if isinstance(stage.gpu, list):
        if len(stage.gpu) != size * replicas:
            needs = f"tp_size {size}" if replicas == 1 else f"{replicas} replicas of tp_size {size}"
            yield Problem(
                f"{path}.gpu",
                f"lists {len(stage.gpu)} GPUs for {needs}; give one for each rank{' of each replica' * (replicas > 1)}",
            )
        for gpus in dict.fromkeys(stage.replica_gpus(replica) for replica in range(replicas)):
            if len(set(gpus)) != len(gpus):
                yield Problem(f"{path}.gpu", f"names a GPU twice in {list(gpus)}; each rank needs its own")
    elif size > 1 and stage.gpu is not None:
        count = size * replicas
        yield Problem(f"{path}.gpu", f"must list {count} GPUs, one for each rank of tp_size {size}, not {stage.gpu}")
    elif size > 1 and replicas > 1 and stage.gpu is None:
        yield Problem(
            f"{path}.replicas", "of a tensor-parallel stage need their GPUs: list those of one after the other"
        )


def check_placement(config: PipelineDeclaration) -> list[Problem]:
    """What is wrong with processes, in a pipeline whose stages have unique names."""
    groups = process_groups(config)
    return [*_check_processes(config, groups), *_check_rank_names(groups)]


def _check_processes(config: PipelineDeclaration, groups: tuple[ProcessGroup, ...]) -> Iterator[Problem]:
    for group in groups:
        stages = [config.stage(name) for name in group.stages]
        parallel = [stage for stage in stages if stage.tp_size > 1]
        if parallel and len(stages) > 1:
            yield Problem(
                f"stages.{parallel[0].name}.process",
                f"a tensor-parallel stage owns its processes, but {group.name!r} runs {listed(group.stages)}",
            )
            continue
        for stage in stages[1:]:
            if stage.replicas != stages[0].replicas:
                yield Problem(
                    f"stages.{stage.name}.replicas",
                    f"is {stage.replicas}, but {stages[0].name!r} in the same process {group.name!r} has "
                    f"{stages[0].replicas}; the stages of a process are replicated together",
                )
        on_gpu = [stage for stage in stages if stage.gpus]
        for stage in on_gpu[1:]:
            first = on_gpu[0]
            if any(stage.replica_gpus(i) != first.replica_gpus(i) for i in range(group.replicas)):
                fused = {stage.process_name, first.process_name} != {group.name}
                yield Problem(
                    f"stages.{stage.name}.gpu",
                    f"is {stage.gpu}, but {first.name!r} in the same process {group.name!r}"
                    f"{' (joined by fused_stages)' if fused else ''} is on GPU {listed(map(str, first.gpus))}; "
                    "a process has at most one GPU",
                )


def _check_rank_names(groups: tuple[ProcessGroup, ...]) -> Iterator[Problem]:
    names = {group.name for group in groups}
    for group in groups:
        for process in group.rank_processes:
            if process != group.name and process in names:
                yield Problem(
                    f"stages.{group.stages[0]}.process",
                    f"its rank's process {process!r} has the name of another process; rename one",
                )
