"""The codec's layers: a causal DAC whose frames go through small transformers, and its residual vector quantizer.

Names are those of the checkpoint's tensors, but for the transformers'. Sizes are the tensors' own (`CodecSizes`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn

from omni_python.layers.causal_conv import CausalConv, ConvNeXt
from omni_python.layers.frame_transformer import FrameTransformer, FrameTransformerConfig

DILATIONS = (1, 3, 9)
"""Of the residual units of a block."""


@dataclass(frozen=True)
class CodecSizes:
    """`*_rates` are by how much each block lowers or raises the rate, `factors` those of the quantizer. `codebooks` are
    the sizes of the quantizer's books; None for a block of the encoder without a transformer."""

    encoder_dim: int
    encoder_rates: tuple[int, ...]
    encoder_transformers: tuple[FrameTransformerConfig | None, ...]
    latent: int
    factors: tuple[int, ...]
    module: FrameTransformerConfig
    codebooks: tuple[int, ...]
    codebook_dim: int
    decoder_dim: int
    decoder_rates: tuple[int, ...]

    @property
    def samples_per_frame(self) -> int:
        """At the codec's 44.1 kHz."""
        return math.prod([*self.decoder_rates, *self.factors])


class Snake(nn.Module):
    """x + sin(a x)^2 / a with an a of each channel (Ziyin et al. 2020)."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.alpha = nn.Parameter(torch.ones(1, channels, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[B, channels, n] -> the same."""
        return x + torch.sin(self.alpha * x).square() / (self.alpha + 1e-9)


class CausalUpsampling(nn.Module):
    """n columns give n * stride: those that a transposed convolution adds at the end are cut off."""

    def __init__(self, inputs: int, outputs: int, kernel: int, stride: int) -> None:
        super().__init__()
        self.conv = nn.ConvTranspose1d(inputs, outputs, kernel, stride=stride)
        self.stride = stride
        self.before = (kernel - 1) // stride
        """On so many columns before its own does a column depend."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[B, inputs, n] -> [B, outputs, n * stride]."""
        out: torch.Tensor = self.conv(x)
        return out[..., : x.shape[-1] * self.stride].contiguous()


class ResidualUnit(nn.Module):
    """Two causal convolutions, the first dilated, beside the residual."""

    def __init__(self, channels: int, dilation: int) -> None:
        super().__init__()
        self.block = nn.Sequential(
            Snake(channels),
            CausalConv(channels, channels, 7, dilation),
            Snake(channels),
            CausalConv(channels, channels, 1),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[B, channels, n] -> the same."""
        out: torch.Tensor = x + self.block(x)
        return out


class ColumnTransformer(FrameTransformer):
    """The same over columns [B, hidden, n]."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x.transpose(1, 2)).transpose(1, 2)


class EncoderBlock(nn.Module):
    """The columns' number by `rate`, twice the channels."""

    def __init__(self, channels: int, rate: int, transformer: FrameTransformerConfig | None) -> None:
        super().__init__()
        layers = [*(ResidualUnit(channels, dilation) for dilation in DILATIONS), Snake(channels)]
        layers.append(CausalConv(channels, 2 * channels, 2 * rate, stride=rate))
        if transformer is not None:
            layers.append(ColumnTransformer(transformer))
        self.block = nn.Sequential(*layers)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[B, channels, n * rate] -> [B, 2 * channels, n]."""
        out: torch.Tensor = self.block(x)
        return out


class DecoderBlock(nn.Module):
    """`rate` times the columns, half the channels."""

    def __init__(self, channels: int, rate: int) -> None:
        super().__init__()
        half = channels // 2
        units = (ResidualUnit(half, dilation) for dilation in DILATIONS)
        self.block = nn.Sequential(Snake(channels), CausalUpsampling(channels, half, 2 * rate, rate), *units)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[B, channels, n] -> [B, channels / 2, n * rate]."""
        out: torch.Tensor = self.block(x)
        return out


class VectorQuantizer(nn.Module):
    """One book: the nearest vector by direction, in a space of few dimensions (Descript's DAC)."""

    def __init__(self, size: int, dim: int, codes: int, encodes: bool) -> None:
        super().__init__()
        if encodes:
            self.in_proj = nn.Conv1d(size, dim, 1)
        self.out_proj = nn.Conv1d(dim, size, 1)
        self.codebook = nn.Embedding(codes, dim)

    def encode(self, x: torch.Tensor) -> torch.Tensor:
        """[B, size, n] -> codes int64 [B, n]."""
        found = F.normalize(self.in_proj(x), dim=1)
        return (F.normalize(self.codebook.weight, dim=1) @ found).argmax(dim=1)

    def forward(self, codes: torch.Tensor) -> torch.Tensor:
        """Codes [B, n], those beyond the book taken for its last one, -> [B, size, n]."""
        vectors = self.codebook(codes.clamp(max=self.codebook.num_embeddings - 1))
        out: torch.Tensor = self.out_proj(vectors.transpose(1, 2))
        return out


class Books(nn.Module):
    """Residual books, as the checkpoint groups them."""

    def __init__(self, sizes: CodecSizes, codebooks: Sequence[int], encodes: bool) -> None:
        super().__init__()
        self.quantizers = nn.ModuleList(
            VectorQuantizer(sizes.latent, sizes.codebook_dim, codes, encodes) for codes in codebooks
        )


class Quantizer(nn.Module):
    """The first book is the semantic one; each of the others refines what those before it left."""

    def __init__(self, sizes: CodecSizes, encodes: bool) -> None:
        super().__init__()
        self.semantic_quantizer = Books(sizes, sizes.codebooks[:1], encodes)
        self.quantizer = Books(sizes, sizes.codebooks[1:], encodes)

    @property
    def books(self) -> list[VectorQuantizer]:
        found = [*self.semantic_quantizer.quantizers, *self.quantizer.quantizers]
        return [book for book in found if isinstance(book, VectorQuantizer)]


class EncodingQuantizer(Quantizer):
    """Columns to codes, at the rate of frames."""

    def __init__(self, sizes: CodecSizes) -> None:
        super().__init__(sizes, encodes=True)
        self.downsample = nn.Sequential(
            *(
                nn.Sequential(CausalConv(sizes.latent, sizes.latent, factor, stride=factor), ConvNeXt(sizes.latent))
                for factor in sizes.factors
            )
        )
        self.pre_module = ColumnTransformer(sizes.module)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[B, latent, n * the product of the factors] -> codes int64 [B, books, n]."""
        rest = self.pre_module(self.downsample(x))
        codes = []
        for book in self.books:
            codes.append(book.encode(rest))
            rest = rest - book(codes[-1])
        return torch.stack(codes, dim=1)


class DecodingQuantizer(Quantizer):
    """Codes to columns; `upsample` is run apart, on those columns that are needed."""

    def __init__(self, sizes: CodecSizes) -> None:
        super().__init__(sizes, encodes=False)
        self.post_module = ColumnTransformer(sizes.module)
        self.upsample = nn.Sequential(
            *(
                nn.Sequential(CausalUpsampling(sizes.latent, sizes.latent, factor, factor), ConvNeXt(sizes.latent))
                for factor in reversed(sizes.factors)
            )
        )

    def forward(self, codes: torch.Tensor) -> torch.Tensor:
        """Codes int64 [B, books, n] -> what the upsampling takes: [B, latent, n]."""
        vectors = torch.stack([book(codes[:, index]) for index, book in enumerate(self.books)])
        columns: torch.Tensor = self.post_module(vectors.sum(dim=0))
        return columns


class Encoder(nn.Module):
    """Samples [B, 1, n] to columns [B, latent, n / the product of the rates]."""

    def __init__(self, sizes: CodecSizes) -> None:
        super().__init__()
        channels = sizes.encoder_dim
        layers: list[nn.Module] = [CausalConv(1, channels, 7)]
        for rate, transformer in zip(sizes.encoder_rates, sizes.encoder_transformers, strict=True):
            layers.append(EncoderBlock(channels, rate, transformer))
            channels *= 2
        self.block = nn.Sequential(*layers, Snake(channels), CausalConv(channels, sizes.latent, 3))


class Decoder(nn.Module):
    """Columns [B, latent, n] to samples [B, 1, n * the product of the rates]."""

    def __init__(self, sizes: CodecSizes) -> None:
        super().__init__()
        width = sizes.decoder_dim
        blocks = [DecoderBlock(width >> index, rate) for index, rate in enumerate(sizes.decoder_rates)]
        last = width >> len(blocks)
        self.model = nn.Sequential(
            CausalConv(sizes.latent, width, 7), *blocks, Snake(last), CausalConv(last, 1, 7), nn.Tanh()
        )


class CodecEncoder(nn.Module):
    """Samples [B, 1, n * samples a frame] -> codes int64 [B, books, n]."""

    def __init__(self, sizes: CodecSizes) -> None:
        super().__init__()
        self.sizes = sizes
        self.encoder = Encoder(sizes)
        self.quantizer = EncodingQuantizer(sizes)

    def forward(self, samples: torch.Tensor) -> torch.Tensor:
        codes: torch.Tensor = self.quantizer(self.encoder.block(samples))
        return codes


class CodecDecoder(nn.Module):
    """Codes to samples."""

    def __init__(self, sizes: CodecSizes) -> None:
        super().__init__()
        self.sizes = sizes
        self.quantizer = DecodingQuantizer(sizes)
        self.decoder = Decoder(sizes)

    def forward(self, codes: torch.Tensor, context: int = 0) -> torch.Tensor:
        """Codes int64 [B, books, n] -> the samples [B, (n - context) * samples a frame] in -1..1 after those of the
        first `context` frames."""
        columns = self.quantizer(codes)
        first_frame = max(0, self._reach(context))
        samples = self.decoder.model(self.quantizer.upsample(columns[..., first_frame:].contiguous()))
        out: torch.Tensor = samples[:, 0, (context - first_frame) * self.sizes.samples_per_frame :]
        return out

    @property
    def receptive_frames(self) -> int:
        """So many frames before its own does a sample depend on."""
        module = self.sizes.module
        return module.layers * (module.window - 1) - self._reach(0)

    def _reach(self, frame: int) -> int:
        """The first column of what is upsampled on which the first sample of `frame` depends; may be below 0."""
        at = frame * self.sizes.samples_per_frame
        for layer in reversed([*self.quantizer.upsample.modules(), *self.decoder.model.modules()]):
            match layer:
                case CausalConv():
                    at -= layer.padding
                case CausalUpsampling():
                    at = at // layer.stride - layer.before
        return at
