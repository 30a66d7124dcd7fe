"""Random weights in a published model's dimensions, for measurements where no checkpoint can be had."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, TypeVar, get_args

import torch
from torch import nn

from omni_python.proto.errors import InvalidArgument

LoadFormat = Literal["auto", "dummy"]
"""Weights of the checkpoint, or random ones: then only its config.json and its tokenizer are read."""

M = TypeVar("M", bound=nn.Module)


def is_dummy(load_format: str) -> bool:
    if load_format not in get_args(LoadFormat):
        raise InvalidArgument(f"load_format {load_format!r} is not known; valid: {', '.join(get_args(LoadFormat))}")
    return load_format == "dummy"


def draw_weights(module: M, dtype: torch.dtype, device: str) -> M:
    """`module`, built on the meta device, with weights drawn on `device`.

    Embeddings have a standard deviation of 0.02 and matrices one of fan_in ** -0.5, which keeps the scale of what goes
    through them; norms are 1 and biases 0.
    """
    module.to(dtype).to_empty(device=device)
    embeddings = {id(part.weight) for part in module.modules() if isinstance(part, nn.Embedding)}
    with torch.no_grad():
        for name, weight in module.named_parameters():
            if weight.dim() == 1:
                weight.fill_(0.0 if name.endswith("bias") else 1.0)
            else:
                weight.normal_(0.0, 0.02 if id(weight) in embeddings else weight.shape[-1] ** -0.5)
    return module.eval().requires_grad_(False)


def built_dummy(build: Callable[[], Any], dtype: torch.dtype, device: str) -> Any:
    """What `build` makes, with torch's own random weights of its layers, drawn on `device`."""
    with torch.device(device):
        module: nn.Module = build()
    for weight in module.parameters():
        weight.data = weight.data.to(device, dtype)
    return module.to(device).eval().requires_grad_(False)
