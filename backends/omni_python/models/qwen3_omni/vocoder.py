"""The vocoder's layers: codec frames through a small transformer, upsampled to samples by causal convolutions.

Names are those of the checkpoint's tensors. No layer sees what comes later, but for the transposed convolutions, which
spread each column over two strides.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from omni_python.layers.decoder import RMSNorm
from omni_python.layers.mlp import GatedMLP
from omni_python.layers.rope import Rotary, rotate

_DILATIONS = (1, 3, 9)
"""Of the residual units of a decoder block."""


class Vocoder(nn.Module):
    """`config` is the `code2wav_config` of a checkpoint."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.config = config
        size, width = config.hidden_size, config.decoder_dim
        self.code_embedding = nn.Embedding(config.codebook_size * config.num_quantizers, size)
        self.pre_transformer = FrameTransformer(config)
        ratios = config.upsampling_ratios
        self.upsample = nn.ModuleList(
            nn.ModuleList((CausalUpsampling(size, size, ratio, ratio), ConvNeXt(size))) for ratio in ratios
        )
        blocks = [DecoderBlock(width >> index, rate) for index, rate in enumerate(config.upsample_rates)]
        last = width >> len(blocks)
        self.decoder = nn.ModuleList((CausalConv(size, width, 7), *blocks, SnakeBeta(last), CausalConv(last, 1, 7)))

    def forward(self, codes: torch.Tensor) -> torch.Tensor:
        """`codes` int64 [B, groups, n] -> samples [B, 1, n * samples a frame - what is lost at the end] in -1..1."""
        return _through(self.decoder, self.columns(codes)).clamp(-1, 1)

    def columns(self, codes: torch.Tensor) -> torch.Tensor:
        """What the decoder takes: [B, hidden, n * the product of `upsampling_ratios`]."""
        groups = torch.arange(self.config.num_quantizers, device=codes.device)
        frames = self.code_embedding(codes + groups[:, None] * self.config.codebook_size).mean(1)
        hidden = self.pre_transformer(frames).transpose(1, 2)
        for layers in self.upsample:
            hidden = _through(layers.children(), hidden)
        return hidden


class FrameTransformer(nn.Module):
    """Layers of attention over a sliding window of frames."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.layers = nn.ModuleList(FrameLayer(config) for _ in range(config.num_hidden_layers))
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self._window = config.sliding_window
        self._rotary = Rotary(_head_dim(config), config.rope_parameters["rope_theta"])

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
    def __init__(self, config: Any) -> None:
        super().__init__()
        size, eps = config.hidden_size, config.rms_norm_eps
        self.input_layernorm = RMSNorm(size, eps)
        self.self_attn = FrameAttention(config)
        self.self_attn_layer_scale = LayerScale(size)
        self.post_attention_layernorm = RMSNorm(size, eps)
        self.mlp = GatedMLP(size, config.intermediate_size)
        self.mlp_layer_scale = LayerScale(size)

    def forward(self, x: torch.Tensor, angles: tuple[torch.Tensor, torch.Tensor], seen: torch.Tensor) -> torch.Tensor:
        x = x + self.self_attn_layer_scale(self.self_attn(self.input_layernorm(x), angles, seen))
        return x + self.mlp_layer_scale(self.mlp(self.post_attention_layernorm(x)))


class FrameAttention(nn.Module):
    def __init__(self, config: Any) -> None:
        super().__init__()
        size, bias = config.hidden_size, config.attention_bias
        self._head_dim = _head_dim(config)
        heads, kv_heads = config.num_attention_heads * self._head_dim, config.num_key_value_heads * self._head_dim
        self.q_proj = nn.Linear(size, heads, bias=bias)
        self.k_proj = nn.Linear(size, kv_heads, bias=bias)
        self.v_proj = nn.Linear(size, kv_heads, bias=bias)
        self.o_proj = nn.Linear(heads, size, bias=bias)

    def forward(self, x: torch.Tensor, angles: tuple[torch.Tensor, torch.Tensor], seen: torch.Tensor) -> torch.Tensor:
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


class CausalConv(nn.Module):
    """Padded with zeros at the left alone: as many columns come out as go in."""

    def __init__(self, inputs: int, outputs: int, kernel: int, dilation: int = 1, groups: int = 1) -> None:
        super().__init__()
        self.conv = nn.Conv1d(inputs, outputs, kernel, dilation=dilation, groups=groups)
        self.padding = (kernel - 1) * dilation

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.conv(F.pad(x, (self.padding, 0)))
        return out


class CausalUpsampling(nn.Module):
    """A transposed convolution of which kernel - stride columns are cut off at both ends."""

    def __init__(self, inputs: int, outputs: int, kernel: int, stride: int) -> None:
        super().__init__()
        self.conv = nn.ConvTranspose1d(inputs, outputs, kernel, stride=stride)
        self._cut = kernel - stride

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.conv(x)
        return out[..., self._cut : out.shape[-1] - self._cut].contiguous()


class ConvNeXt(nn.Module):
    """A depthwise convolution and a wide layer of each column, beside the residual (ConvNeXt, Liu et al. 2022)."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.dwconv = CausalConv(size, size, 7, groups=size)
        self.norm = nn.LayerNorm(size, eps=1e-6)
        self.pwconv1 = nn.Linear(size, 4 * size)
        self.pwconv2 = nn.Linear(4 * size, size)
        self.gamma = nn.Parameter(torch.full((size,), 1e-6))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        wide = F.gelu(self.pwconv1(self.norm(self.dwconv(x).transpose(1, 2))))
        return x + (self.gamma * self.pwconv2(wide)).transpose(1, 2)


class SnakeBeta(nn.Module):
    """x + sin(a x)^2 / b with a and b, given by their logarithms, of each channel (Ziyin et al. 2020, BigVGAN)."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.alpha = nn.Parameter(torch.zeros(channels))
        self.beta = nn.Parameter(torch.zeros(channels))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        frequency, height = self.alpha.exp()[:, None], 1.0 / (self.beta.exp()[:, None] + 1e-9)
        return x + height * torch.sin(x * frequency).square()


class DecoderBlock(nn.Module):
    """`rate` times the columns, half the channels."""

    def __init__(self, channels: int, rate: int) -> None:
        super().__init__()
        half = channels // 2
        units = (ResidualUnit(half, dilation) for dilation in _DILATIONS)
        self.block = nn.ModuleList((SnakeBeta(channels), CausalUpsampling(channels, half, 2 * rate, rate), *units))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return _through(self.block, x)


class ResidualUnit(nn.Module):
    def __init__(self, channels: int, dilation: int) -> None:
        super().__init__()
        self.act1 = SnakeBeta(channels)
        self.conv1 = CausalConv(channels, channels, 7, dilation)
        self.act2 = SnakeBeta(channels)
        self.conv2 = CausalConv(channels, channels, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = x + self.conv2(self.act2(self.conv1(self.act1(x))))
        return out


def _head_dim(config: Any) -> int:
    return int(getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads)


def _through(layers: Iterable[nn.Module], x: torch.Tensor) -> torch.Tensor:
    for layer in layers:
        x = layer(x)
    return x
