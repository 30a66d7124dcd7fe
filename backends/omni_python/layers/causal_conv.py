"""Convolutions over columns [B, channels, n] that see nothing of what comes later."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn


class CausalConv(nn.Module):
    """Padded with zeros at the left alone: n columns, a multiple of `stride`, give n / stride."""

    def __init__(
        self, inputs: int, outputs: int, kernel: int, dilation: int = 1, groups: int = 1, stride: int = 1
    ) -> None:
        super().__init__()
        self.conv = nn.Conv1d(inputs, outputs, kernel, stride=stride, dilation=dilation, groups=groups)
        self.padding = (kernel - 1) * dilation + 1 - stride

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[B, inputs, n] -> [B, outputs, n / stride]."""
        out: torch.Tensor = self.conv(F.pad(x, (self.padding, 0)))
        return out


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
        """[B, size, n] -> the same."""
        wide = F.gelu(self.pwconv1(self.norm(self.dwconv(x).transpose(1, 2))))
        return x + (self.gamma * self.pwconv2(wide)).transpose(1, 2)
