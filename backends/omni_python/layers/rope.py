"""Rotary position embedding, in one or in three dimensions."""

from __future__ import annotations

from collections.abc import Sequence

import torch


class Rotary:
    """Angles of the rotary embedding of `head_dim` dimensions.

    With `sections` (time, height, width; each a number of frequencies) it has three dimensions. Interleaved, frequency
    i turns with the height position where i % 3 == 1 and i < 3 * sections[1], with the width position where i % 3 == 2
    and i < 3 * sections[2], and with the time position elsewhere (Qwen3-Omni, Qwen3-VL). Else the first sections[0]
    frequencies turn with time, the next sections[1] with height, and the others with width (Qwen2-VL, Qwen2.5-Omni).
    """

    def __init__(
        self, head_dim: int, theta: float, sections: Sequence[int] | None = None, interleaved: bool = True
    ) -> None:
        exponents = torch.arange(0, head_dim, 2, dtype=torch.float32, device="cpu") / head_dim
        self._frequencies = 1.0 / theta**exponents
        axis = torch.zeros(head_dim // 2, dtype=torch.int64, device="cpu")
        if sections is not None and interleaved:
            for dimension in (1, 2):
                axis[dimension : 3 * sections[dimension] : 3] = dimension
        elif sections is not None:
            axis[sections[0] :] = 1
            axis[sections[0] + sections[1] :] = 2
        self._axis = axis

    def angles(self, positions: torch.Tensor) -> torch.Tensor:
        """Angles, float32 [tokens, head_dim / 2], of `positions` [3, tokens]."""
        if self._frequencies.device != positions.device:
            self._frequencies, self._axis = self._frequencies.to(positions.device), self._axis.to(positions.device)
        return positions.T.float()[:, self._axis] * self._frequencies

    def __call__(self, positions: torch.Tensor, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
        """Cosine and sine, each [tokens, 1, head_dim] of `dtype`, of `positions` [3, tokens]."""
        angles = self.angles(positions)
        angles = torch.cat((angles, angles), dim=-1)[:, None]
        return angles.cos().to(dtype), angles.sin().to(dtype)


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """`x` [tokens, heads, head_dim] turned by the angles; dimension i is paired with i + head_dim / 2."""
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-second, first), dim=-1) * sin
