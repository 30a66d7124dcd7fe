"""The vocoder's layers: codec frames through a small transformer, upsampled to samples by causal convolutions.

Names are those of the checkpoint's tensors. No layer sees what comes later, but for the transposed convolutions, which
spread each column over two strides.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

from omni_python.layers.causal_conv import CausalConv, ConvNeXt
from omni_python.layers.frame_transformer import FrameTransformer, FrameTransformerConfig

_DILATIONS = (1, 3, 9)
"""Of the residual units of a decoder block."""


class Vocoder(nn.Module):
    """`config` is the `code2wav_config` of a checkpoint."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.config = config
        size, width = config.hidden_size, config.decoder_dim
        self.code_embedding = nn.Embedding(config.codebook_size * config.num_quantizers, size)
        self.pre_transformer = FrameTransformer(_transformer_config(config))
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


class CausalUpsampling(nn.Module):
    """A transposed convolution of which kernel - stride columns are cut off at both ends."""

    def __init__(self, inputs: int, outputs: int, kernel: int, stride: int) -> None:
        super().__init__()
        self.conv = nn.ConvTranspose1d(inputs, outputs, kernel, stride=stride)
        self._cut = kernel - stride

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[B, inputs, n] -> [B, outputs, (n + 1) * stride - kernel]."""
        out: torch.Tensor = self.conv(x)
        return out[..., self._cut : out.shape[-1] - self._cut].contiguous()


class SnakeBeta(nn.Module):
    """x + sin(a x)^2 / b with a and b, given by their logarithms, of each channel (Ziyin et al. 2020, BigVGAN)."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.alpha = nn.Parameter(torch.zeros(channels))
        self.beta = nn.Parameter(torch.zeros(channels))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[B, channels, n] -> the same."""
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
        """[B, channels, n] -> [B, channels / 2, (n - 1) * rate]."""
        return _through(self.block, x)


class ResidualUnit(nn.Module):
    """Two causal convolutions, the first dilated, beside the residual."""

    def __init__(self, channels: int, dilation: int) -> None:
        super().__init__()
        self.act1 = SnakeBeta(channels)
        self.conv1 = CausalConv(channels, channels, 7, dilation)
        self.act2 = SnakeBeta(channels)
        self.conv2 = CausalConv(channels, channels, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[B, channels, n] -> the same."""
        out: torch.Tensor = x + self.conv2(self.act2(self.conv1(self.act1(x))))
        return out


def _transformer_config(config: Any) -> FrameTransformerConfig:
    return FrameTransformerConfig(
        hidden=config.hidden_size,
        layers=config.num_hidden_layers,
        heads=config.num_attention_heads,
        kv_heads=config.num_key_value_heads,
        head_dim=getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads,
        intermediate=config.intermediate_size,
        window=config.sliding_window,
        rope_theta=config.rope_parameters["rope_theta"],
        norm_eps=config.rms_norm_eps,
        attention_bias=config.attention_bias,
    )


def _through(layers: Iterable[nn.Module], x: torch.Tensor) -> torch.Tensor:
    for layer in layers:
        x = layer(x)
    return x
