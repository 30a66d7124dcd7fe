"""Whisper's encoder (Radford et al. 2022, "Robust Speech Recognition via Large-Scale Weak Supervision") for one sound
of any length up to its positions. Its modules have the names of Hugging Face's checkpoints."""

from __future__ import annotations

import re
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn

_FROM_OPENAI = {
    "positional_embedding": "embed_positions.weight",
    "blocks": "layers",
    "attn": "self_attn",
    "attn_ln": "self_attn_layer_norm",
    "query": "q_proj",
    "key": "k_proj",
    "value": "v_proj",
    "out": "out_proj",
    "mlp.0": "fc1",
    "mlp.2": "fc2",
    "mlp_ln": "final_layer_norm",
    "ln_post": "layer_norm",
}
"""Parts of the names in OpenAI's checkpoints; others are the same."""
_OPENAI_PARTS = re.compile(rf"(?<![^.])(?:{'|'.join(map(re.escape, _FROM_OPENAI))})(?![^.])")


@dataclass(frozen=True)
class EncoderSizes:
    """At most `positions` vectors of `width`, one for two mel frames of `mel_bins`; `inner` is the feed-forward's."""

    mel_bins: int
    width: int
    heads: int
    inner: int
    layers: int
    positions: int


class Attention(nn.Module):
    """Whisper's: keys have no bias."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self._heads = heads
        self.q_proj = nn.Linear(width, width)
        self.k_proj = nn.Linear(width, width, bias=False)
        self.v_proj = nn.Linear(width, width)
        self.out_proj = nn.Linear(width, width)

    def keys_values(self, hidden: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Of [n, width]: each [heads, n, head width]."""
        return self._split(self.k_proj(hidden)), self._split(self.v_proj(hidden))

    def forward(self, hidden: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, causal: bool) -> torch.Tensor:
        """`hidden` [n, width]. With `causal` the keys are of the n positions themselves."""
        queries = self._split(self.q_proj(hidden))
        mixed = F.scaled_dot_product_attention(queries[None], keys[None], values[None], is_causal=causal)[0]
        projected: torch.Tensor = self.out_proj(mixed.transpose(0, 1).flatten(1))
        return projected

    def _split(self, projected: torch.Tensor) -> torch.Tensor:
        return projected.unflatten(-1, (self._heads, -1)).transpose(0, 1)


class Layer(nn.Module):
    """Of the encoder; that of a decoder also attends to the sound."""

    def __init__(self, width: int, heads: int, inner: int) -> None:
        super().__init__()
        self.self_attn = Attention(width, heads)
        self.self_attn_layer_norm = nn.LayerNorm(width)
        self.fc1 = nn.Linear(width, inner)
        self.fc2 = nn.Linear(inner, width)
        self.final_layer_norm = nn.LayerNorm(width)

    def feed_forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """`hidden` [n, width] -> the same, the residual added."""
        return hidden + self.fc2(F.gelu(self.fc1(self.final_layer_norm(hidden))))

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """`hidden` [n, width] -> the same."""
        normed = self.self_attn_layer_norm(hidden)
        hidden = hidden + self.self_attn(normed, *self.self_attn.keys_values(normed), causal=False)
        return self.feed_forward(hidden)


class WhisperEncoder(nn.Module):
    """Of one clip at a time."""

    def __init__(self, sizes: EncoderSizes) -> None:
        super().__init__()
        self.conv1 = nn.Conv1d(sizes.mel_bins, sizes.width, 3, padding=1)
        self.conv2 = nn.Conv1d(sizes.width, sizes.width, 3, stride=2, padding=1)
        self.embed_positions = nn.Embedding(sizes.positions, sizes.width)
        self.layers = nn.ModuleList(Layer(sizes.width, sizes.heads, sizes.inner) for _ in range(sizes.layers))
        self.layer_norm = nn.LayerNorm(sizes.width)

    def forward(self, mel: torch.Tensor) -> torch.Tensor:
        """A log-mel spectrum [mel bins, frames] -> [ceil(frames / 2), width]."""
        hidden = F.gelu(self.conv2(F.gelu(self.conv1(mel[None]))))[0].T
        hidden = hidden + self.embed_positions.weight[: len(hidden)]
        for layer in self.layers:
            hidden = layer(hidden)
        normed: torch.Tensor = self.layer_norm(hidden)
        return normed


def from_openai(name: str) -> str:
    """What a tensor of OpenAI's encoder, like blocks.0.mlp.2.weight, is called here."""
    return _OPENAI_PARTS.sub(lambda part: _FROM_OPENAI[part[0]], name)
