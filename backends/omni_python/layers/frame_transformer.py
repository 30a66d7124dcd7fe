"""A small transformer over a codec's frames, which sees a sliding window of them."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn

from omni_python.layers.decoder import RMSNorm
from omni_python.layers.mlp import GatedMLP
from omni_python.layers.rope import Rotary, rotate


@dataclass(frozen=True)
class FrameTransformerConfig:
    """Sizes of the transformer; a frame sees itself and the `window` - 1 frames before it."""

    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    window: int
    rope_theta: float
    norm_eps: float
    attention_bias: bool = False


class FrameTransformer(nn.Module):
    """Layers of attention over a sliding window of frames."""

    def __init__(self, config: FrameTransformerConfig) -> None:
        super().__init__()
        self.layers = nn.ModuleList(FrameLayer(config) for _ in range(config.layers))
        self.norm = RMSNorm(config.hidden, config.norm_eps)
        self._window = config.window
        self._rotary = Rotary(config.head_dim, config.rope_theta)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[B, n, hidden] -> the same."""
        places = torch.arange(x.shape[1], device=x.device)
        angles = self._rotary(places.expand(3, -1), x.dtype)
        distance = places[:, None] - places
        seen = (distance >= 0) & (distance < self._window)
        for layer in self.layers:
            x = layer(x, angles, seen)
        normed: torch.Tensor = self.norm(x)
        return normed


class FrameLayer(nn.Module):
    """Attention and a gated MLP, each behind a norm, scaled, and beside the residual."""

    def __init__(self, config: FrameTransformerConfig) -> None:
        super().__init__()
        size, eps = config.hidden, config.norm_eps
        self.input_layernorm = RMSNorm(size, eps)
        self.self_attn = FrameAttention(config)
        self.self_attn_layer_scale = LayerScale(size)
        self.post_attention_layernorm = RMSNorm(size, eps)
        self.mlp = GatedMLP(size, config.intermediate)
        self.mlp_layer_scale = LayerScale(size)

    def forward(self, x: torch.Tensor, angles: tuple[torch.Tensor, torch.Tensor], seen: torch.Tensor) -> torch.Tensor:
        """As `FrameAttention.forward`."""
        x = x + self.self_attn_layer_scale(self.self_attn(self.input_layernorm(x), angles, seen))
        return x + self.mlp_layer_scale(self.mlp(self.post_attention_layernorm(x)))


class FrameAttention(nn.Module):
    """Of each frame to those that it sees."""

    def __init__(self, config: FrameTransformerConfig) -> None:
        super().__init__()
        size, bias = config.hidden, config.attention_bias
        self._head_dim = config.head_dim
        heads, kv_heads = config.heads * config.head_dim, config.kv_heads * config.head_dim
        self.q_proj = nn.Linear(size, heads, bias=bias)
        self.k_proj = nn.Linear(size, kv_heads, bias=bias)
        self.v_proj = nn.Linear(size, kv_heads, bias=bias)
        self.o_proj = nn.Linear(heads, size, bias=bias)

    def forward(self, x: torch.Tensor, angles: tuple[torch.Tensor, torch.Tensor], seen: torch.Tensor) -> torch.Tensor:
        """`x` [B, n, hidden] -> the same; `angles` as `Rotary` gives them, `seen` bool [n, n]: row i sees column j."""
        heads = (*x.shape[:2], -1, self._head_dim)
        query, key = rotate(self.q_proj(x).view(heads), *angles), rotate(self.k_proj(x).view(heads), *angles)
        value = self.v_proj(x).view(heads)
        out = F.scaled_dot_product_attention(
            query.transpose(1, 2),
            key.transpose(1, 2),
            value.transpose(1, 2),
            attn_mask=seen,
            enable_gqa=key.shape[2] != query.shape[2],
        )
        projected: torch.Tensor = self.o_proj(out.transpose(1, 2).reshape(*x.shape[:2], -1))
        return projected


class LayerScale(nn.Module):
    """A factor for each channel."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.full((size,), 0.01))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.scale * x
