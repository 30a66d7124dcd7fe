"""Rotary position embedding of a part of each head."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from omni_python.layers.rope import Rotary


class PartialRotary(Rotary):
    """Turns `rotary_dim` dimensions of each head and leaves the others as they are.

    `rotate` pairs dimension i with i + head_dim / 2, where published models pair it with i + rotary_dim / 2. So queries
    and keys get their dimensions in another order (`reordered`), which no product of them notices.

    With `sections` (time, height, width; each a number of frequencies) it has three dimensions, as VideoRoPE (Wei et
    al. 2025) has them: the first frequencies turn with height and width in turn, the last sections[0] with time.
    """

    def __init__(self, head_dim: int, rotary_dim: int, theta: float, sections: Sequence[int] | None = None) -> None:
        super().__init__(rotary_dim, theta)
        still = torch.zeros((head_dim - rotary_dim) // 2, device="cpu")
        self._frequencies = torch.cat((self._frequencies, still))
        self._axis = torch.zeros(head_dim // 2, dtype=torch.int64, device="cpu")
        if sections is not None:
            spatial = sections[1] + sections[2]
            self._axis[:spatial:2] = 1
            self._axis[1:spatial:2] = 2


def reordered(tensor: torch.Tensor, head_dim: int, rotary_dim: int) -> torch.Tensor:
    """`tensor` [heads * head_dim, ...] of a published model, its turned dimensions first in each half of a head."""
    heads = tensor.unflatten(0, (-1, head_dim))
    half, still = rotary_dim // 2, (head_dim - rotary_dim) // 2
    first, second, third, fourth = heads.split([half, half, still, still], dim=1)
    return torch.cat((first, third, second, fourth), dim=1).reshape(tensor.shape)
