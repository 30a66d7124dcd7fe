"""The fields of a pipeline and of its stages, and what follows from them alone; `schema` adds the rules."""

from __future__ import annotations

import re
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, StrictBool, StrictInt, StrictStr

from omni_python.config.base import ConfigModel
from omni_python.config.errors import stage_paths
from omni_python.config.fields import MAX_NAME_LENGTH, Arguments, DottedPath, Environment, Gpus, Name, Targets, is_name
from omni_python.config.parts import EndpointsConfig, HostConfig, LimitsConfig, RelayConfig, TraceConfig

RelayBackend = Literal["shm", "nccl", "nixl", "mooncake"]


class StageConfig(ConfigModel):
    """One logical stage. All functions and the factory are dotted import paths.

    `next` (or `terminal`) is where results go; `route_fn(request_id, output)` picks from `next` for one request.
    `wait_for` lists the stages whose results `merge_fn` merges before this stage starts;
    `wait_for_fn(request_id, from_stage, payload)` picks from it. `stream_to` lists the stages that receive chunks;
    `stream_done_to_fn(request_id, output)` picks those that are told of the end. `project_payload` maps a target to
    the function that makes its part of a result. `process` is required unless `tp_size` > 1.

    `host` is one of the pipeline's hosts, by default that of the orchestrator.
    `replicas` is how many processes run the stage's process group side by side; each request stays with one of them.
    `gpu` is the GPU of all, or lists the GPUs of one replica after the other, `tp_size` for each.
    """

    _parts: ClassVar = {"relay": RelayConfig}

    name: Name
    process: Name | None = None
    host: StrictStr | None = None
    factory: DottedPath
    factory_args: Arguments = {}
    gpu: Gpus = None
    tp_size: Annotated[StrictInt, Field(ge=1)] = 1
    replicas: Annotated[StrictInt, Field(ge=1, le=64)] = 1
    wait_for: list[StrictStr] | None = None
    wait_for_fn: DottedPath | None = None
    merge_fn: DottedPath | None = None
    next: Targets = None
    terminal: StrictBool = False
    route_fn: DottedPath | None = None
    project_payload: dict[StrictStr, DottedPath] = {}
    stream_to: list[StrictStr] = []
    stream_done_to_fn: DottedPath | None = None
    relay: RelayConfig | None = None

    @property
    def next_stages(self) -> tuple[str, ...]:
        """`next` as a tuple; empty for a terminal stage."""
        if self.next is None:
            return ()
        return (self.next,) if isinstance(self.next, str) else tuple(self.next)

    @property
    def gpus(self) -> tuple[int, ...]:
        """The GPU of each rank of each replica; empty for a stage on the CPU."""
        if self.gpu is None:
            return ()
        return (self.gpu,) if isinstance(self.gpu, int) else tuple(self.gpu)

    def replica_gpus(self, replica: int) -> tuple[int, ...]:
        """The GPU of each rank of one replica; empty on the CPU."""
        if isinstance(self.gpu, list):
            return tuple(self.gpu[replica * self.tp_size : (replica + 1) * self.tp_size])
        return self.gpus

    @property
    def process_name(self) -> str:
        """`process`, or the stage's name where a tensor-parallel stage leaves it out."""
        return self.process or self.name

    @classmethod
    def _paths(cls, data: dict[str, Any]) -> tuple[str, list[str]]:
        name = data.get("name")
        return (f"stages.{name}" if isinstance(name, str) and is_name(name) else "stage"), []


class PipelineDeclaration(ConfigModel):
    """A pipeline's fields.

    `model_path` is a Hugging Face id or a folder (see `resolved_model_path` for relative ones); `runtime_overrides`
    maps a stage to factory arguments that win over its `factory_args`; `terminal_stages_fn(request)` picks the
    terminal stages of one request; `info_fn(model_path)` makes the `PipelineInfo` that clients can ask for.
    `hosts` are the hosts of a pipeline on several, by name; its clients call the orchestrator's, by default the first.
    `config_cls` is filled in with the class's dotted path.
    """

    _parts: ClassVar = {
        "stages": StageConfig,
        "relay": RelayConfig,
        "hosts": HostConfig,
        "endpoints": EndpointsConfig,
        "limits": LimitsConfig,
        "trace": TraceConfig,
    }

    config_cls: StrictStr | None = None
    name: Name | None = None
    model_path: Annotated[StrictStr, Field(min_length=1)]
    entry_stage: StrictStr | None = None
    terminal_stages_fn: DottedPath | None = None
    info_fn: DottedPath | None = None
    relay_backend: RelayBackend = "shm"
    hosts: dict[Name, HostConfig] = {}
    orchestrator_host: StrictStr | None = None
    endpoints: EndpointsConfig = EndpointsConfig()
    limits: LimitsConfig = LimitsConfig()
    trace: TraceConfig = TraceConfig()
    env_defaults: Environment = {}
    runtime_overrides: dict[StrictStr, Arguments] = {}
    fused_stages: list[list[StrictStr]] = []
    stages: list[StageConfig]

    @property
    def resolved_name(self) -> str:
        """`name`, or the last part of `model_path` in the characters that a name may have; "" where that has none."""
        if self.name is not None:
            return self.name
        last = self.model_path.rstrip("/").rsplit("/", 1)[-1]
        return re.sub(r"[^A-Za-z0-9_-]+", "_", last).strip("_-")[:MAX_NAME_LENGTH]

    @property
    def resolved_entry_stage(self) -> str:
        return self.entry_stage or self.stages[0].name

    @property
    def terminal_stages(self) -> tuple[str, ...]:
        return tuple(stage.name for stage in self.stages if stage.terminal)

    @property
    def gpu_placement(self) -> dict[str, int | list[int]]:
        """The stages with `gpu` set, each with its GPU or those of its ranks and replicas."""
        return {stage.name: stage.gpu for stage in self.stages if stage.gpu is not None}

    @property
    def resolved_orchestrator_host(self) -> str:
        """The name of the orchestrator's host; "" for a pipeline on one."""
        return self.orchestrator_host or next(iter(self.hosts), "")

    def host_of(self, stage: StageConfig) -> str:
        """The name of a stage's host; "" for a pipeline on one."""
        return stage.host or self.resolved_orchestrator_host

    def stage(self, name: str) -> StageConfig:
        """The stage of that name; raises KeyError."""
        for stage in self.stages:
            if stage.name == name:
                return stage
        raise KeyError(name)

    @classmethod
    def _paths(cls, data: dict[str, Any]) -> tuple[str, list[str]]:
        return "", stage_paths([raw_name(stage) for stage in cls.raw_stages(data)])

    @classmethod
    def raw_stages(cls, data: dict[str, Any]) -> list[Any]:
        """The stages in `data`, or the class's own, as they are."""
        stages = data.get("stages", cls.model_fields["stages"].default)
        return stages if isinstance(stages, list) else []


def raw_name(stage: Any) -> Any:
    """The name of a stage that may not have been read yet."""
    return stage.get("name") if isinstance(stage, dict) else getattr(stage, "name", None)
