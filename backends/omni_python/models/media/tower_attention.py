"""What towers over sound and pictures share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import torch
import torch.nn.functional as F

from omni_python.models.loading.checkpoint import CheckpointError

_ACTIVATIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "gelu": F.gelu,
    "gelu_pytorch_tanh": partial(F.gelu, approximate="tanh"),
    "silu": F.silu,
}


def activation(name: str) -> Callable[[torch.Tensor], torch.Tensor]:
    """By the name that config.json has for it. Raises `CheckpointError` for others."""
    if name not in _ACTIVATIONS:
        raise CheckpointError(f"activation {name!r} is not supported; supported: {', '.join(_ACTIVATIONS)}")
    return _ACTIVATIONS[name]


def attend_apart(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, lengths: Sequence[int]) -> torch.Tensor:
    """Attention of tokens [n, heads, size] to those of the same piece; `lengths` are the pieces', n in all."""
    pieces = zip(*(part.split(list(lengths)) for part in (query, key, value)), strict=True)
    return torch.cat([_attend(*piece) for piece in pieces])


def _attend(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    query, key, value = (part.transpose(0, 1)[None] for part in (query, key, value))
    return F.scaled_dot_product_attention(query, key, value)[0].transpose(0, 1)
