"""The AudioVAE's decoder: latents to a waveform."""

from __future__ import annotations

from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

from omni_python.layers.frame_transformer import FrameTransformer, FrameTransformerConfig
from omni_python.models.loading.checkpoint import read_tensors
from omni_python.models.loading.dummy import LoadFormat, draw_weights, is_dummy
from omni_python.models.loading.modules import assign, on_meta
from omni_python.models.ming_omni.architecture import WHOLE, VAEConfig

OVERLAP = 4
"""Frames whose windows a sample is in: the Fourier transform is so many times as long as a frame."""
LOUDEST = 100.0
"""Of a magnitude, as published: a safeguard."""
_UNUSED = ("decoder.embed_tokens.weight", "head.istft.window")
"""Of the backbone, which reads no tokens; and what is computed anew."""


class SpectrumHead(nn.Module):
    """Frames [B, n, hidden] -> samples [B, n * hop], by the inverse of a short-time Fourier transform."""

    def __init__(self, hidden: int, hop: int) -> None:
        super().__init__()
        self._hop = hop
        self.out = nn.Linear(hidden, OVERLAP * hop + 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        size = OVERLAP * self._hop
        magnitude, phase = self.out(x).float().transpose(1, 2).chunk(2, dim=1)
        spectrum = torch.polar(magnitude.exp().clip(max=LOUDEST), phase)
        window = torch.hann_window(size, device=x.device)[:, None]
        samples = self._overlapped(torch.fft.irfft(spectrum, size, dim=1) * window)
        # Where the windows themselves overlap, at the ends fewer than elsewhere.
        return samples / self._overlapped(window.square().expand(1, -1, x.shape[1]))

    def _overlapped(self, frames: torch.Tensor) -> torch.Tensor:
        """[B, size, n] -> [B, n * hop]: what lies before the middle of the first frame's first hop is cut off."""
        size, count = frames.shape[1:]
        length = (count - 1) * self._hop + size
        added = F.fold(frames, (1, length), kernel_size=(1, size), stride=(1, self._hop))[:, 0, 0]
        pad = (size - self._hop) // 2
        return added[:, pad : length - pad]


class AudioDecoder(nn.Module):
    """Module names are those of published checkpoints, but for the backbone's, which are Qwen2's."""

    def __init__(self, config: VAEConfig) -> None:
        super().__init__()
        self._upsampling = config.upsampling
        self.fc1 = nn.Linear(config.latent, config.decoder.hidden)
        self.decoder = FrameTransformer(config.decoder)
        self.head = SpectrumHead(config.decoder.hidden, config.hop)

    def forward(self, latents: torch.Tensor) -> torch.Tensor:
        """Latents [B, n, latent] of one whole speech -> its samples, float32 [B, n * samples_per_latent]."""
        x = self.fc1(latents)
        if self._upsampling > 1:
            x = F.interpolate(x.transpose(1, 2), scale_factor=self._upsampling, mode="linear").transpose(1, 2)
        samples: torch.Tensor = self.head(self.decoder(x))
        return samples


def receptive_latents(config: VAEConfig) -> int:
    """So many latents before its own does a sample depend on."""
    if config.decoder.window == WHOLE:
        return WHOLE
    frames = config.decoder.layers * (config.decoder.window - 1) + OVERLAP // 2
    return -(-frames // config.upsampling) + 1  # and one by interpolation


def latents_ahead(config: VAEConfig) -> int:
    """So many latents after its own does a sample depend on: half of the overlapping frames, interpolated."""
    return 1 if config.upsampling > OVERLAP // 2 else 2


def load_audio_decoder(
    path: str | Path, config: VAEConfig, dtype: torch.dtype, device: str, load_format: LoadFormat = "auto"
) -> AudioDecoder:
    """Of the checkpoint at `path`. Raises `CheckpointError`."""
    with on_meta():
        decoder = AudioDecoder(config)
    if is_dummy(load_format):
        return draw_weights(decoder, dtype, device)
    stored = read_tensors(Path(path) / "talker" / "vae", "decoder.", dtype, device)
    tensors = {name: tensor for name, tensor in stored.items() if name not in _UNUSED}
    tensors |= qwen2_tensors("decoder.", config.decoder, stored["fc1.bias"])
    return assign(decoder, tensors, "AudioVAE's decoder")


def qwen2_tensors(prefix: str, config: FrameTransformerConfig, like: torch.Tensor) -> dict[str, torch.Tensor]:
    """What a `FrameTransformer` has and Qwen2's layers have not: factors of 1, and a bias of 0 behind the attention. Of
    the dtype and on the device of `like`."""
    ones = like.new_ones(config.hidden)
    made: dict[str, torch.Tensor] = {}
    for layer in range(config.layers):
        at = f"{prefix}layers.{layer}.self_attn"
        made |= {f"{at}.o_proj.bias": torch.zeros_like(ones), f"{at}_layer_scale.scale": ones}
        made[f"{prefix}layers.{layer}.mlp_layer_scale.scale"] = ones
    return made
