"""Qwen3's vision encoder: patches through attention within each picture, then merged to tokens.

Names are those of Qwen3-Omni's tensors.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from omni_python.layers.rope import rotate
from omni_python.models.media.pieces import Grid
from omni_python.models.media.tower_attention import activation, attend_apart

_EPS = 1e-6
_THETA = 10_000.0
"""Of the rotary embedding; config.json does not say it."""


class VisionTower(nn.Module):
    """`config` is a checkpoint's `vision_config`, whose names it has."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.config = config
        size, taps = config.hidden_size, config.deepstack_visual_indexes
        self.patch_embed = PatchEmbedding(config)
        self.pos_embed = nn.Embedding(config.num_position_embeddings, size)
        self.blocks = nn.ModuleList(VisionBlock(config) for _ in range(config.depth))
        self.merger = PatchMerger(config, norm_merged=False)
        self.merger_list = nn.ModuleList(PatchMerger(config, norm_merged=True) for _ in taps)
        self._taps = {layer: index for index, layer in enumerate(taps)}

    def forward(self, patches: torch.Tensor, grids: Sequence[Grid]) -> tuple[torch.Tensor, list[torch.Tensor]]:
        """`patches` [n, values] of all pictures -> embeddings [n / merge^2, out_hidden_size], and as many of each
        deepstack layer."""
        places = [self._places(grid).to(patches.device) for grid in grids]
        x = self.patch_embed(patches)
        x = x + self._position_embeddings(places, grids).to(x.dtype)
        angles = self._angles(torch.cat(places))
        lengths = [rows * columns for steps, rows, columns in grids for _ in range(steps)]
        deepstack = {}
        for index, block in enumerate(self.blocks):
            x = block(x, angles, lengths)
            if (tap := self._taps.get(index)) is not None:
                deepstack[tap] = self.merger_list[tap](x)
        return self.merger(x), [deepstack[tap] for tap in range(len(self._taps))]

    def _places(self, grid: Grid) -> torch.Tensor:
        """Row and column, int64 [n, 2], of each patch: the patches of a token follow each other."""
        steps, rows, columns = grid
        side = self.config.spatial_merge_size
        numbers = torch.arange(rows * columns).view(rows // side, side, columns // side, side).transpose(1, 2).flatten()
        return torch.stack((numbers // columns, numbers % columns), dim=-1).repeat(steps, 1)

    def _position_embeddings(self, places: Sequence[torch.Tensor], grids: Sequence[Grid]) -> torch.Tensor:
        """The square table of `pos_embed`, stretched over each picture: bilinear between its four nearest rows."""
        side = math.isqrt(self.config.num_position_embeddings)
        at = torch.cat([_stretched(place, grid[1:], side) for place, grid in zip(places, grids, strict=True)])
        low = at.long()
        high = (low + 1).clamp(max=side - 1)
        (down, right), (top, left), (bottom, further) = (at - low).unbind(-1), low.unbind(-1), high.unbind(-1)
        corners = (
            (top * side + left, (1 - down) * (1 - right)),
            (top * side + further, (1 - down) * right),
            (bottom * side + left, down * (1 - right)),
            (bottom * side + further, down * right),
        )
        return torch.stack([self.pos_embed(index) * weight[:, None] for index, weight in corners]).sum(0)

    def _angles(self, places: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Cosine and sine, float32 [n, 1, head size]: half of the frequencies turn with the row, half with the
        column."""
        quarter = self.config.hidden_size // self.config.num_heads // 4
        frequencies = _THETA ** -(torch.arange(quarter, device=places.device) / quarter)
        angles = (places[..., None] * frequencies).flatten(1).repeat(1, 2)[:, None]
        return angles.cos(), angles.sin()


def _stretched(places: torch.Tensor, size: tuple[int, int], side: int) -> torch.Tensor:
    """Where `places` [n, 2] of a picture of that size lie in a table of `side` rows and columns: float32 [n, 2]."""
    stretched = [torch.linspace(0, side - 1, count, device=places.device) for count in size]
    return torch.stack([line[place] for line, place in zip(stretched, places.unbind(-1), strict=True)], dim=-1)


class PatchEmbedding(nn.Module):
    """A patch's values to its vector."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        kernel = (config.temporal_patch_size, config.patch_size, config.patch_size)
        self.proj = nn.Conv3d(config.in_channels, config.hidden_size, kernel, stride=kernel)

    def forward(self, patches: torch.Tensor) -> torch.Tensor:
        """[n, channels * frames * rows * columns] -> [n, hidden]: the kernel is as large as a patch."""
        return F.linear(patches, self.proj.weight.flatten(1), self.proj.bias)


class VisionBlock(nn.Module):
    """Attention and an MLP, each behind a norm and beside the residual."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        size = config.hidden_size
        self.norm1 = nn.LayerNorm(size, eps=_EPS)
        self.norm2 = nn.LayerNorm(size, eps=_EPS)
        self.attn = VisionAttention(size, config.num_heads)
        self.mlp = VisionMLP(config)

    def forward(
        self, x: torch.Tensor, angles: tuple[torch.Tensor, torch.Tensor], lengths: Sequence[int]
    ) -> torch.Tensor:
        """As `VisionAttention.forward`."""
        x = x + self.attn(self.norm1(x), angles, lengths)
        out: torch.Tensor = x + self.mlp(self.norm2(x))
        return out


class VisionAttention(nn.Module):
    """Of patches to those of the same piece."""

    def __init__(self, size: int, heads: int) -> None:
        super().__init__()
        self._heads = heads
        self.qkv = nn.Linear(size, 3 * size)
        self.proj = nn.Linear(size, size)

    def forward(
        self, x: torch.Tensor, angles: tuple[torch.Tensor, torch.Tensor], lengths: Sequence[int]
    ) -> torch.Tensor:
        """`x` [patches, hidden] -> the same; `lengths` are the pieces', one after the other."""
        query, key, value = self.qkv(x).view(len(x), 3, self._heads, -1).unbind(1)
        query, key = (rotate(part.float(), *angles).to(x.dtype) for part in (query, key))
        out: torch.Tensor = self.proj(attend_apart(query, key, value, lengths).flatten(1))
        return out


class VisionMLP(nn.Module):
    """Two layers, with the activation that the config names."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.linear_fc1 = nn.Linear(config.hidden_size, config.intermediate_size)
        self.linear_fc2 = nn.Linear(config.intermediate_size, config.hidden_size)
        self._activation = activation(config.hidden_act)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[patches, hidden] -> the same."""
        out: torch.Tensor = self.linear_fc2(self._activation(self.linear_fc1(x)))
        return out


class PatchMerger(nn.Module):
    """The patches of a token, one after the other, to its embedding; normed before or after they are joined."""

    def __init__(self, config: Any, norm_merged: bool) -> None:
        super().__init__()
        merged = config.hidden_size * config.spatial_merge_size**2
        self.ln_q = nn.LayerNorm(merged if norm_merged else config.hidden_size, eps=_EPS)
        self.mlp = nn.ModuleList((nn.Linear(merged, merged), nn.GELU(), nn.Linear(merged, config.out_hidden_size)))
        self._merged = merged

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[patches, hidden] -> [tokens, out_hidden_size]."""
        x = self.ln_q(x.reshape(-1, self.ln_q.normalized_shape[0])).view(-1, self._merged)
        for layer in self.mlp:
            x = layer(x)
        return x
