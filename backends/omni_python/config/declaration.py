"""The fields of a pipeline's declaration and what follows from them alone; `schema` adds the rules.

The models are frozen and refuse unknown keys. Values of wrong types raise `ConfigError` with every problem.
"""

from __future__ import annotations

import re
import tempfile
from contextvars import ContextVar
from os import environ
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StrictBool, StrictInt, StrictStr, ValidationError, field_validator
from pydantic_core import PydanticCustomError

from omni_python.config.errors import ConfigError, stage_paths
from omni_python.config.fields import MAX_NAME_LENGTH, Arguments, DottedPath, Environment, Gpus, Name, Targets, is_name
from omni_python.config.model_errors import problems_of

RelayBackend = Literal["shm", "nccl", "nixl", "mooncake"]

MAX_BASE_PATH_LENGTH = 48
"""A Unix socket's whole path has to fit into 107 bytes (sun_path in unix(7)); the rest is for the socket's own name."""

# Set while an outer model is being built: only the outermost one reports, with the whole path.
_nested: ContextVar[bool] = ContextVar("nested", default=False)


class ConfigModel(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    def __init__(self, /, **data: Any) -> None:
        if _nested.get():
            super().__init__(**data)
            return
        token = _nested.set(True)
        try:
            super().__init__(**data)
        except ValidationError as error:
            root, labels = self._paths(data)
            raise ConfigError(problems_of(error, root, labels, {"": type(self), **_MODELS})) from None
        finally:
            _nested.reset(token)

    @classmethod
    def _paths(cls, data: dict[str, Any]) -> tuple[str, list[str]]:
        """The path of this model when it stands alone, and the paths of its stages."""
        return "", []


class RelayConfig(ConfigModel):
    """How a stage sends its tensors.

    `slot_size_mb` MiB is what one slot of the stage's pool holds; `credits` is how many slots an edge may have in
    flight. `rank` and `world_size` place the stage in a collective backend's group and belong together.
    `device` is where the pool lies ("cpu", "cuda" or "cuda:N"); None infers it from the stage's placement.
    """

    slot_size_mb: Annotated[StrictInt, Field(ge=1, le=4096)] = 32
    credits: Annotated[StrictInt, Field(ge=1, le=64)] = 2
    rank: Annotated[StrictInt, Field(ge=0)] | None = None
    world_size: Annotated[StrictInt, Field(ge=1)] | None = None
    device: StrictStr | None = None

    @field_validator("device")
    @classmethod
    def _check_device(cls, value: str | None) -> str | None:
        if value is not None and not re.fullmatch(r"cpu|cuda(:\d+)?", value):
            raise PydanticCustomError("omni", "must be 'cpu', 'cuda' or 'cuda:N', not {value}", {"value": repr(value)})
        return value

    @classmethod
    def _paths(cls, data: dict[str, Any]) -> tuple[str, list[str]]:
        return "relay", []


class EndpointsConfig(ConfigModel):
    """Where the private socket directory is made; None stands for XDG_RUNTIME_DIR or the system's temporary folder.

    `key_file` is an absolute path on each host of a pipeline on several: the key that its processes prove to each
    other.
    """

    base_path: StrictStr | None = None
    key_file: StrictStr | None = None

    @field_validator("base_path")
    @classmethod
    def _check_base_path(cls, value: str | None) -> str | None:
        if value is not None and not (value.startswith("/") and len(value.encode()) <= MAX_BASE_PATH_LENGTH):
            raise PydanticCustomError(
                "omni",
                "must be an absolute path of at most {limit} bytes (socket paths are short), not {value}",
                {"limit": MAX_BASE_PATH_LENGTH, "value": repr(value)},
            )
        return value

    @field_validator("key_file")
    @classmethod
    def _check_key_file(cls, value: str | None) -> str | None:
        if value is not None and not value.startswith("/"):
            raise PydanticCustomError(
                "omni", "must be an absolute path, such as /etc/omni/key, not {value}", {"value": repr(value)}
            )
        return value

    @property
    def resolved_base_path(self) -> Path:
        return Path(self.base_path or environ.get("XDG_RUNTIME_DIR") or tempfile.gettempdir())

    @classmethod
    def _paths(cls, data: dict[str, Any]) -> tuple[str, list[str]]:
        return "endpoints", []


class HostConfig(ConfigModel):
    """A machine, or pod, with a tritonserver of its own for a part of the pipeline.

    `address` is the IP address or DNS name by which the other hosts reach it. Its processes listen at this address
    alone, each at a port of its own, from `port` upwards. The relay chooses its ports itself.
    """

    address: Annotated[StrictStr, Field(max_length=253)]
    port: Annotated[StrictInt, Field(ge=1024, le=65535)] = 7100

    @field_validator("address")
    @classmethod
    def _check_address(cls, value: str) -> str:
        if not re.fullmatch(r"[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?|[0-9A-Fa-f:.]*:[0-9A-Fa-f:.]*", value):
            raise PydanticCustomError(
                "omni", "must be an IP address or a DNS name without a port, not {value}", {"value": repr(value)}
            )
        return value

    @classmethod
    def _paths(cls, data: dict[str, Any]) -> tuple[str, list[str]]:
        return "host", []


class LimitsConfig(ConfigModel):
    """What the orchestrator admits and how long it waits.

    `max_in_flight` requests are worked on at once and `max_queued` more wait for their turn; others are refused.
    `deadline_s` seconds are for each request, waiting included; a client may ask for less. `grace_s`: for how long a
    request waits for stage processes that are not there; `silence_s`: after how many seconds without a heartbeat a
    process counts as stuck and is killed (building CUDA graphs or a long garbage collection may keep one silent).
    Where a process that died is not back after `reload_s` seconds, or five times those that it took to start before,
    the server is stuck, and `omni serve` starts it again. A process that dies more than `max_deaths` times within 5
    minutes is not started again.
    """

    max_in_flight: Annotated[StrictInt, Field(ge=1)] = 256
    max_queued: Annotated[StrictInt, Field(ge=0)] = 256
    deadline_s: Annotated[float, Field(gt=0)] = 600.0
    grace_s: Annotated[float, Field(ge=0)] = 10.0
    silence_s: Annotated[float, Field(ge=3)] = 15.0
    reload_s: Annotated[float, Field(gt=0)] = 60.0
    max_deaths: Annotated[StrictInt, Field(ge=0)] = 5

    @classmethod
    def _paths(cls, data: dict[str, Any]) -> tuple[str, list[str]]:
        return "limits", []


class TraceConfig(ConfigModel):
    """Which requests are traced beside those that ask for it, and where traces go.

    `sample` is the share (0 to 1) of the requests that say nothing of it themselves. The orchestrator keeps the traces
    of the last `keep` that have ended. `otlp_endpoint` is the URL to which all are sent over OTLP/HTTP, for example
    http://localhost:4318/v1/traces; it needs the extra `otel`.
    """

    sample: Annotated[float, Field(ge=0, le=1)] = 0.0
    keep: Annotated[StrictInt, Field(ge=1, le=10_000)] = 64
    otlp_endpoint: StrictStr | None = None

    @field_validator("otlp_endpoint")
    @classmethod
    def _check_endpoint(cls, value: str | None) -> str | None:
        if value is not None and not re.fullmatch(r"https?://[^/\s]+(/\S*)?", value):
            raise PydanticCustomError(
                "omni",
                "must be a URL like http://localhost:4318/v1/traces, not {value}",
                {"value": repr(value)},
            )
        return value

    @classmethod
    def _paths(cls, data: dict[str, Any]) -> tuple[str, list[str]]:
        return "trace", []


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


_MODELS: dict[str, type[BaseModel]] = {
    "stages": StageConfig,
    "relay": RelayConfig,
    "hosts": HostConfig,
    "endpoints": EndpointsConfig,
    "limits": LimitsConfig,
    "trace": TraceConfig,
}
