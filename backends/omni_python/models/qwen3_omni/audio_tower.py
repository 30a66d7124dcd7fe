"""The audio encoder's layers: chunks of mel frames through convolutions, then attention within windows of tokens.

Names are those of the checkpoint's tensors.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from omni_python.models.media.tower_attention import activation, attend_apart

_LONGEST_WAVE = 10_000.0
"""Of the sinusoids that stand for a token's place in its chunk (Whisper's)."""


class AudioTower(nn.Module):
    """`config` is a checkpoint's `audio_config`."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.config = config
        size, channels = config.d_model, config.downsample_hidden_size
        bins = config.num_mel_bins
        for _ in range(3):
            bins = (bins + 1) // 2
        self.conv2d1 = nn.Conv2d(1, channels, 3, 2, padding=1)
        self.conv2d2 = nn.Conv2d(channels, channels, 3, 2, padding=1)
        self.conv2d3 = nn.Conv2d(channels, channels, 3, 2, padding=1)
        self.conv_out = nn.Linear(channels * bins, size, bias=False)
        self.layers = nn.ModuleList(AudioLayer(config) for _ in range(config.encoder_layers))
        self.ln_post = nn.LayerNorm(size)
        self.proj1 = nn.Linear(size, size)
        self.proj2 = nn.Linear(size, config.output_dim)
        self._activation = activation(config.activation_function)

    def forward(self, chunks: torch.Tensor, places: torch.Tensor, lengths: Sequence[int]) -> torch.Tensor:
        """`chunks` [n, bins, frames], padded at the end; `places` int64 [tokens] in n * tokens of a whole chunk: which
        are none of padding; `lengths` of the windows, tokens in all -> [tokens, output_dim]."""
        x = chunks[:, None]
        for conv in (self.conv2d1, self.conv2d2, self.conv2d3):
            x = F.gelu(conv(x))
        x = self.conv_out(x.permute(0, 3, 1, 2).flatten(2))
        x = (x + self._sinusoids(x.shape[1], x.device).to(x.dtype)).flatten(0, 1)[places]
        for layer in self.layers:
            x = layer(x, lengths)
        out: torch.Tensor = self.proj2(self._activation(self.proj1(self.ln_post(x))))
        return out

    def _sinusoids(self, count: int, device: torch.device) -> torch.Tensor:
        half = self.config.d_model // 2
        rates = torch.exp(torch.arange(half, device=device) * (-math.log(_LONGEST_WAVE) / (half - 1)))
        angles = torch.arange(count, device=device)[:, None] * rates
        return torch.cat((angles.sin(), angles.cos()), dim=1)


class AudioLayer(nn.Module):
    def __init__(self, config: Any) -> None:
        super().__init__()
        size = config.d_model
        self.self_attn = AudioAttention(size, config.encoder_attention_heads)
        self.self_attn_layer_norm = nn.LayerNorm(size)
        self.fc1 = nn.Linear(size, config.encoder_ffn_dim)
        self.fc2 = nn.Linear(config.encoder_ffn_dim, size)
        self.final_layer_norm = nn.LayerNorm(size)
        self._activation = activation(config.activation_function)

    def forward(self, x: torch.Tensor, lengths: Sequence[int]) -> torch.Tensor:
        x = x + self.self_attn(self.self_attn_layer_norm(x), lengths)
        out: torch.Tensor = x + self.fc2(self._activation(self.fc1(self.final_layer_norm(x))))
        return out


class AudioAttention(nn.Module):
    def __init__(self, size: int, heads: int) -> None:
        super().__init__()
        self._heads = heads
        self.q_proj = nn.Linear(size, size)
        self.k_proj = nn.Linear(size, size)
        self.v_proj = nn.Linear(size, size)
        self.out_proj = nn.Linear(size, size)

    def forward(self, x: torch.Tensor, lengths: Sequence[int]) -> torch.Tensor:
        heads = (len(x), self._heads, -1)
        query, key, value = (projection(x).view(heads) for projection in (self.q_proj, self.k_proj, self.v_proj))
        out: torch.Tensor = self.out_proj(attend_apart(query, key, value, lengths).flatten(1))
        return out
