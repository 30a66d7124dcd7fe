"""Whisper's encoder, for clips of any length up to its positions."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from omni_python.models.ming_omni.encoder_architecture import EncoderConfig


class WhisperAttention(nn.Module):
    def __init__(self, size: int, heads: int) -> None:
        super().__init__()
        self._heads = heads
        self.query = nn.Linear(size, size)
        self.key = nn.Linear(size, size, bias=False)
        self.value = nn.Linear(size, size)
        self.out = nn.Linear(size, size)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        query, key, value = (
            project(x).unflatten(-1, (self._heads, -1)).transpose(0, 1)
            for project in (self.query, self.key, self.value)
        )
        attended = F.scaled_dot_product_attention(query[None], key[None], value[None])[0]
        out: torch.Tensor = self.out(attended.transpose(0, 1).flatten(1))
        return out


class WhisperBlock(nn.Module):
    def __init__(self, size: int, heads: int) -> None:
        super().__init__()
        self.attn = WhisperAttention(size, heads)
        self.attn_ln = nn.LayerNorm(size)
        self.mlp = nn.Sequential(nn.Linear(size, 4 * size), nn.GELU(), nn.Linear(4 * size, size))
        self.mlp_ln = nn.LayerNorm(size)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attn(self.attn_ln(x))
        out: torch.Tensor = x + self.mlp(self.mlp_ln(x))
        return out


class WhisperEncoder(nn.Module):
    """One clip's log-mel spectrum [bins, frames] -> [ceil(frames / 2), hidden]."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        size = config.hidden
        self.conv1 = nn.Conv1d(config.bins, size, 3, padding=1)
        self.conv2 = nn.Conv1d(size, size, 3, stride=2, padding=1)
        self.positional_embedding = nn.Parameter(torch.empty(config.positions, size))
        self.blocks = nn.ModuleList(WhisperBlock(size, config.heads) for _ in range(config.layers))
        self.ln_post = nn.LayerNorm(size)

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        x = F.gelu(self.conv2(F.gelu(self.conv1(features[None]))))[0].T
        x = x + self.positional_embedding[: len(x)]
        for block in self.blocks:
            x = block(x)
        out: torch.Tensor = self.ln_post(x)
        return out
