"""Where a stage's model lies, and in which precision it computes."""

from __future__ import annotations

from typing import Literal, TypeVar, get_args

import torch

from omni_python.proto.errors import InvalidArgument
from omni_python.scheduling.torch_loop import TorchLoopScheduler

L = TypeVar("L", bound=TorchLoopScheduler)

Dtype = Literal["auto", "float32", "bfloat16"]
"""Precision of weights and activations; "auto" is float32 on the CPU and bfloat16 on a GPU."""


def placement(gpu_id: int | None, dtype: Dtype) -> tuple[torch.dtype, str]:
    """The torch dtype and device of a stage on GPU `gpu_id`, or on the CPU."""
    if dtype not in get_args(Dtype):
        raise InvalidArgument(f"dtype {dtype!r} is not known; valid: {', '.join(get_args(Dtype))}")
    if dtype == "auto":
        dtype = "float32" if gpu_id is None else "bfloat16"
    elif dtype == "float32":
        torch.backends.cudnn.allow_tf32 = False  # torch's default for convolutions: 10 bits of mantissa, not float32
    return getattr(torch, dtype), "cpu" if gpu_id is None else f"cuda:{gpu_id}"


def on_own_stream(scheduler: L, device: str, priority: int = 0) -> L:
    """On a GPU a stage has a stream to itself. Steps that are short and waited for go before, with priority -1, what a
    stage beside them in the process has under way."""
    if device != "cpu":
        scheduler.stream = torch.cuda.Stream(device, priority=priority)
    return scheduler
