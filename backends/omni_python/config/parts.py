"""The parts of a declaration that are no stages: relay, endpoints, hosts, limits and tracing."""

from __future__ import annotations

import re
import tempfile
from os import environ
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, StrictInt, StrictStr, field_validator
from pydantic_core import PydanticCustomError

from omni_python.config.base import ConfigModel

MAX_BASE_PATH_LENGTH = 48
"""A Unix socket's whole path has to fit into 107 bytes (sun_path in unix(7)); the rest is for the socket's own name."""


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
        """`base_path`, or what stands for it."""
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
    deadline_s: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 600.0
    grace_s: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 10.0
    silence_s: Annotated[float, Field(ge=3, allow_inf_nan=False)] = 15.0
    reload_s: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 60.0
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
