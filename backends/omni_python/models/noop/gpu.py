"""The no-op line with its data on GPUs: from stage to stage nothing leaves them."""

from __future__ import annotations

import functools
import time

import msgspec
import torch

from omni_python.config.schema import RelayConfig
from omni_python.models.noop.config import NoopLinePipelineConfig
from omni_python.models.noop.payloads import NoopParams
from omni_python.proto.payload import Payload, TextOutput
from omni_python.proto.request import OmniRequest
from omni_python.scheduling.base import Scheduler
from omni_python.scheduling.simple import SimpleScheduler

_HERE = "omni_python.models.noop.gpu"


class GpuBlock(Payload):
    """Some bytes on a GPU, uint8 [nbytes], on their way through. `sent` is the system's monotonic clock in seconds."""

    params: NoopParams
    data: torch.Tensor
    sent: float


def on_gpus(first: int, others: int, slot_size_mb: int = 300) -> NoopLinePipelineConfig:
    """The line with its first stage on one GPU and the others on another, or the same."""
    factories = {"a": "create_source", "b": "create_pass", "c": "create_sink"}
    stages = [
        stage.model_copy(
            update={
                "factory": f"{_HERE}.{factories[stage.name]}",
                "gpu": first if stage.name == "a" else others,
                "factory_args": {"total_gpu_memory_fraction": 0.1},
                "relay": RelayConfig(slot_size_mb=slot_size_mb),
            }
        )
        for stage in NoopLinePipelineConfig().stages
    ]
    return NoopLinePipelineConfig(stages=stages)


def create_source(gpu_id: int) -> Scheduler:
    """Entry stage "a": OmniRequest -> GpuBlock of the size asked for, on the stage's GPU."""

    @functools.cache
    def pattern(nbytes: int) -> torch.Tensor:
        return torch.arange(nbytes, device=f"cuda:{gpu_id}").to(torch.uint8)

    def compute(request: OmniRequest) -> GpuBlock:
        params = NoopParams.of(request)
        return GpuBlock(params, pattern(params.nbytes), time.monotonic())

    return SimpleScheduler(compute)


def create_pass() -> Scheduler:
    """Middle stage "b": GpuBlock -> the same."""

    def compute(block: GpuBlock) -> GpuBlock:
        return block

    return SimpleScheduler(compute)


def create_sink() -> Scheduler:
    """Terminal stage "c": GpuBlock -> its size, its last byte, where it lies, and the microseconds from stage "a" to
    here, as JSON text."""

    def compute(block: GpuBlock) -> TextOutput:
        taken = time.monotonic() - block.sent
        last = int(block.data[-1]) if len(block.data) else 0
        report = {
            "nbytes": len(block.data),
            "last": last,
            "device": str(block.data.device),
            "two_edges_us": taken * 1e6,
        }
        return TextOutput(msgspec.json.encode(report).decode(), "stop")

    return SimpleScheduler(compute)
