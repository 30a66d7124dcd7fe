"""From a pipeline's declaration to what runs: the coordinator's spec, and a process's stages with their schedulers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from omni_python.config.resolve import apply_env_defaults, factory_kwargs, resolve_dotted, resolved_model_path
from omni_python.config.schema import PipelineConfig, RelayConfig, StageConfig
from omni_python.config.topology import Topology, resolve_topology
from omni_python.pipeline.gpu_share import take_gpu_share
from omni_python.pipeline.spec import Limits, PipelineSpec
from omni_python.pipeline.stage_spec import StageSpec
from omni_python.pipeline.stats.gpu_memory import GpuMemory
from omni_python.pipeline.tracing.store import TraceStore
from omni_python.proto.errors import OmniError, Unsupported
from omni_python.proto.info import PipelineInfo
from omni_python.relay.base import RelaySettings
from omni_python.relay.ways import relay_gpu
from omni_python.scheduling.base import Scheduler


def pipeline_spec(config: PipelineConfig) -> PipelineSpec:
    """What the coordinator needs. Imports `terminal_stages_fn`, nothing else of the model family."""
    topology = resolve_topology(config)
    return PipelineSpec(
        name=topology.pipeline,
        entry_stage=topology.entry_stage,
        stages={group.name: group.stages for group in topology.groups},
        replicas={group.name: group.replicas for group in topology.groups},
        feeders={terminal: _feeders(topology, terminal) for terminal in topology.terminal_stages},
        terminal_stages_fn=_function(config.terminal_stages_fn, "terminal_stages_fn"),
    )


def limits(config: PipelineConfig) -> Limits:
    """The coordinator's bounds."""
    given = config.limits
    return Limits(given.max_in_flight, given.max_queued, given.deadline_s, given.grace_s, given.silence_s)


def trace_store(config: PipelineConfig) -> TraceStore:
    """Where the orchestrator keeps traces, and from where they are exported. Raises `Unsupported` where the packages
    for that are not there."""
    trace = config.trace
    if trace.otlp_endpoint is None:
        return TraceStore(trace.sample, trace.keep)
    try:
        from omni_python.pipeline.tracing.otlp import OtlpExporter
    except ImportError as error:
        raise Unsupported(
            f"trace.otlp_endpoint needs the extra `otel` (pip install omni-python[otel]): {error}"
        ) from None
    return TraceStore(trace.sample, trace.keep, OtlpExporter(trace.otlp_endpoint, config.resolved_name))


def pipeline_info(config: PipelineConfig, repository: Path) -> PipelineInfo:
    """What the pipeline tells its clients; raises what its `info_fn` raises, and OmniError where that gives no info."""
    if config.info_fn is None:
        return PipelineInfo()
    info = resolve_dotted(config.info_fn, "info_fn")(resolved_model_path(config, repository))
    if not isinstance(info, PipelineInfo):
        raise OmniError(f"info_fn returned a {type(info).__name__}, not a PipelineInfo")
    return info


def _feeders(topology: Topology, stage: str) -> frozenset[str]:
    """The stage and everything upstream of it."""
    found = {stage}
    waiting = [stage]
    while waiting:
        for edge in topology.edges_to(waiting.pop()):
            if edge.source not in found:
                found.add(edge.source)
                waiting.append(edge.source)
    return frozenset(found)


def build_stages(
    config: PipelineConfig, process: str, repository: Path, replica: int = 0, memory: GpuMemory | None = None
) -> list[tuple[StageSpec, Scheduler]]:
    """Import and build every stage of a process. Environment defaults are set first, since they must precede imports.
    `memory` is told of each stage.

    Raises `ConfigError` for paths and arguments that do not fit, `OmniError` for a factory that returns no scheduler,
    `Unavailable` where the stages' shares of the GPU's memory are not free.
    """
    apply_env_defaults(config)
    model_path = resolved_model_path(config, repository)
    group = next((group for group in resolve_topology(config).groups if group.name == process), None)
    if group is None:
        raise OmniError(f"pipeline {config.resolved_name} has no process {process}; compile the model repository again")
    take_gpu_share(config, group, replica)
    stages = {stage.name: stage for stage in config.stages}
    built = []
    for name in group.stages:
        stage = stages[name]
        factory = resolve_dotted(stage.factory, f"stages.{name}.factory")
        scheduler = factory(**factory_kwargs(config, stage, model_path=str(model_path), replica=replica))
        if not isinstance(scheduler, Scheduler):
            raise OmniError(
                f"stages.{name}.factory: {stage.factory} returned a {type(scheduler).__name__}, not a Scheduler"
            )
        built.append((stage_spec(stage), scheduler))
        if memory is not None:
            memory.built(name)
    return built


def stage_spec(stage: StageConfig) -> StageSpec:
    """The stage's routing, with its functions imported."""
    where = f"stages.{stage.name}"
    return StageSpec(
        name=stage.name,
        next=stage.next_stages,
        terminal=stage.terminal,
        route_fn=_function(stage.route_fn, f"{where}.route_fn"),
        wait_for=tuple(stage.wait_for or ()),
        wait_for_fn=_function(stage.wait_for_fn, f"{where}.wait_for_fn"),
        merge_fn=_function(stage.merge_fn, f"{where}.merge_fn"),
        stream_to=tuple(stage.stream_to),
        stream_done_to_fn=_function(stage.stream_done_to_fn, f"{where}.stream_done_to_fn"),
        project={
            target: resolve_dotted(path, f"{where}.project_payload.{target}")
            for target, path in stage.project_payload.items()
        },
    )


def relay_settings(config: PipelineConfig, process: str | None = None, replica: int = 0) -> RelaySettings:
    """A process's relay: its pool is that of its most demanding stage (None: the orchestrator's, on the CPU)."""
    topology = resolve_topology(config)
    group = next((group for group in topology.groups if group.name == process), None)
    relays = [config.stage(name).relay or RelayConfig() for name in group.stages] if group else [RelayConfig()]
    return RelaySettings(
        backend=config.relay_backend,
        pool_bytes=max(relay.slot_size_mb * relay.credits for relay in relays) << 20,
        gpu=relay_gpu(config, group, replica) if group else None,
        rank=next((relay.rank for relay in relays if relay.rank is not None), None),
    )


def _function(path: str | None, where: str) -> Any:
    return resolve_dotted(path, where) if path is not None else None
