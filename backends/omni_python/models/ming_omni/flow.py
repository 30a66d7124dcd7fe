"""The talker's transformers over latents: the one that flow matching asks for a direction, and the aggregator.

Module names are those of published checkpoints. Rotary angles turn neighbouring dimensions together, as in
x-transformers, which the published code calls.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import nn

from omni_python.layers.decoder import RMSNorm
from omni_python.models.ming_omni.architecture import FlowConfig

NORM_EPS = 1e-6
ROPE_THETA = 10000.0
TIME_FREQUENCIES, TIME_SCALE = 256, 1000
"""No file of a checkpoint tells these; so in the published modules."""

_STEPS = {
    5: (0, 2, 4, 8, 16, 32),
    6: (0, 2, 4, 6, 8, 16, 32),
    7: (0, 2, 4, 6, 8, 16, 24, 32),
    10: (0, 2, 4, 6, 8, 12, 16, 20, 24, 28, 32),
    12: (0, 2, 4, 6, 8, 10, 12, 14, 16, 20, 24, 28, 32),
    16: (0, 1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20, 24, 28, 32),
}
"""Times of the flow, in 32nds, for so many steps (empirically pruned step sampling, F5-TTS); else evenly spaced."""


class FlowAttention(nn.Module):
    """Every place sees every other."""

    def __init__(self, config: FlowConfig) -> None:
        super().__init__()
        size, dim = config.hidden, config.hidden // config.heads
        self._dim = dim
        self.to_q, self.to_k, self.to_v = (nn.Linear(size, size) for _ in range(3))
        self.to_out = nn.ModuleList([nn.Linear(size, size)])
        self.q_norm, self.k_norm = (RMSNorm(dim, NORM_EPS) if config.qk_norm else nn.Identity() for _ in range(2))

    def forward(self, x: torch.Tensor, angles: torch.Tensor) -> torch.Tensor:
        """`x` [B, n, hidden] -> the same; `angles` [n, half the dimensions of a head]."""
        query, key, value = (
            project(x).unflatten(-1, (-1, self._dim)).transpose(1, 2) for project in (self.to_q, self.to_k, self.to_v)
        )
        query, key = _turned(self.q_norm(query), angles), _turned(self.k_norm(key), angles)
        out = F.scaled_dot_product_attention(query, key, value)
        projected: torch.Tensor = self.to_out[0](out.transpose(1, 2).flatten(2))
        return projected


class FlowFeedForward(nn.Module):
    """Two layers with a GELU between them."""

    def __init__(self, config: FlowConfig) -> None:
        super().__init__()
        wide = nn.Sequential(nn.Linear(config.hidden, config.intermediate), nn.GELU(approximate="tanh"))
        self.ff = nn.Sequential(wide, nn.Identity(), nn.Linear(config.intermediate, config.hidden))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[..., hidden] -> the same."""
        out: torch.Tensor = self.ff(x)
        return out


class FlowBlock(nn.Module):
    """Attention and a feed-forward layer, each behind a norm and beside the residual."""

    def __init__(self, config: FlowConfig) -> None:
        super().__init__()
        self.norm1 = RMSNorm(config.hidden, NORM_EPS)
        self.attn = FlowAttention(config)
        self.norm2 = RMSNorm(config.hidden, NORM_EPS)
        self.mlp = FlowFeedForward(config)

    def forward(self, x: torch.Tensor, angles: torch.Tensor) -> torch.Tensor:
        """As `FlowAttention.forward`."""
        x = x + self.attn(self.norm1(x), angles)
        return x + self.mlp(self.norm2(x))


class FinalLayer(nn.Module):
    """A norm and a linear layer."""

    def __init__(self, hidden: int, outputs: int) -> None:
        super().__init__()
        self.norm_final = RMSNorm(hidden, NORM_EPS)
        self.linear = nn.Linear(hidden, outputs)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[..., hidden] -> [..., outputs]."""
        out: torch.Tensor = self.linear(self.norm_final(x))
        return out


class FlowStack(nn.Module):
    """Blocks over [B, n, hidden], and the layer that makes `outputs` values of each place."""

    def __init__(self, config: FlowConfig, inputs: int, outputs: int) -> None:
        super().__init__()
        self.x_embedder = nn.Linear(inputs, config.hidden)
        self.blocks = nn.ModuleList(FlowBlock(config) for _ in range(config.depth))
        self.final_layer = FinalLayer(config.hidden, outputs)
        self._dim = config.hidden // config.heads

    def through(self, x: torch.Tensor) -> torch.Tensor:
        """Embedded places [B, n, hidden] -> [B, n, outputs]."""
        angles = _angles(x.shape[1], self._dim, x.device)
        for block in self.blocks:
            x = block(x, angles)
        out: torch.Tensor = self.final_layer(x)
        return out


class Aggregator(FlowStack):
    """The talker's next input, made of a patch of latents."""

    def __init__(self, config: FlowConfig, latent: int, outputs: int) -> None:
        super().__init__(config, latent, outputs)
        self.word_embedder = nn.Embedding(1, config.hidden)

    def forward(self, latents: torch.Tensor) -> torch.Tensor:
        """[B, patch, latent] -> [B, outputs]."""
        first = self.word_embedder.weight.expand(len(latents), 1, -1)
        return self.through(torch.cat((first, self.x_embedder(latents)), dim=1))[:, 0]


class _Condition(nn.Module):
    def __init__(self, inputs: int, hidden: int) -> None:
        super().__init__()
        self.cond_embedder = nn.Linear(inputs, hidden)


class _Time(nn.Module):
    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.time_mlp = nn.Sequential(nn.Linear(TIME_FREQUENCIES, hidden), nn.SiLU(), nn.Linear(hidden, hidden))


class DirectionModel(FlowStack):
    """Which way latents are to move at a time of the flow, given the talker's hidden state and the latents before."""

    def __init__(self, config: FlowConfig, latent: int, condition: int) -> None:
        super().__init__(config, latent, latent)
        self.t_embedder = _Time(config.hidden)
        self.c_embedder = _Condition(condition, config.hidden)

    def forward(self, x: torch.Tensor, time: float, condition: torch.Tensor, history: torch.Tensor) -> torch.Tensor:
        """`x` [B, patch, latent] at `time` in 0..1, `condition` [B, C], `history` [B, h, latent] -> like `x`."""
        half = TIME_FREQUENCIES // 2
        steps = torch.arange(half, device=x.device, dtype=torch.float32)
        angles = TIME_SCALE * time * torch.exp(steps * (-math.log(10000) / (half - 1)))
        embedded = self.t_embedder.time_mlp(torch.cat((angles.sin(), angles.cos())).to(x.dtype))
        first = embedded + self.c_embedder.cond_embedder(condition)
        places = torch.cat((first[:, None], self.x_embedder(torch.cat((history, x), dim=1))), dim=1)
        return self.through(places)[:, -x.shape[1] :]


class FlowMatching(nn.Module):
    """From noise to latents in `steps` Euler steps, guided away from what no condition gives (Lipman et al. 2023; Ho &
    Salimans 2022). Times are bent towards the beginning ("sway sampling", F5-TTS, with a coefficient of -1)."""

    def __init__(self, model: DirectionModel, steps: int, guidance: float) -> None:
        super().__init__()
        self.model = model
        self.steps = steps
        self._guidance = guidance
        times = [time / 32 for time in _STEPS[steps]] if steps in _STEPS else [n / steps for n in range(steps + 1)]
        self._times = [1 - math.cos(math.pi / 2 * time) for time in times]

    def forward(
        self, x: torch.Tensor, condition: torch.Tensor, history: torch.Tensor, noise: torch.Tensor | None = None
    ) -> torch.Tensor:
        """`x` [B, patch, latent] is noise; `noise` [steps, B, patch, latent], already scaled, is added step by step."""
        both = torch.cat((condition, torch.zeros_like(condition)))
        twice = torch.cat((history, history))
        for step in range(self.steps):
            time, after = self._times[step : step + 2]
            guided, free = self.model(torch.cat((x, x)), time, both, twice).chunk(2)
            x = x + (guided + (guided - free) * self._guidance) * (after - time)
            if noise is not None:
                x = x + noise[step] * math.sqrt(abs(after - time))
        return x


def _angles(places: int, dim: int, device: torch.device) -> torch.Tensor:
    """float32 [places, dim / 2]."""
    frequencies = ROPE_THETA ** -(torch.arange(0, dim, 2, device=device, dtype=torch.float32) / dim)
    return torch.arange(places, device=device, dtype=torch.float32)[:, None] * frequencies


def _turned(x: torch.Tensor, angles: torch.Tensor) -> torch.Tensor:
    """`x` [B, heads, n, dim]."""
    cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
    even, odd = x[..., 0::2], x[..., 1::2]
    return torch.stack((even * cos - odd * sin, odd * cos + even * sin), dim=-1).flatten(-2)
