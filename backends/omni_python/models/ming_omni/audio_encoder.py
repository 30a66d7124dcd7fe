"""The thinker's ear: Whisper's encoder (Radford et al. 2022) and a projection to the thinker's size.

Whisper's tensors have OpenAI's names in published checkpoints.
"""

from __future__ import annotations

from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

from omni_python.models.loading.checkpoint import read_tensors
from omni_python.models.loading.dummy import LoadFormat, draw_weights, is_dummy
from omni_python.models.loading.modules import assign, on_meta
from omni_python.models.media.whisper_encoder import EncoderSizes, WhisperEncoder, from_openai
from omni_python.models.ming_omni.encoder_architecture import EncoderConfig
from omni_python.models.ming_omni.payloads import ClipEmbeds, Clips


class AudioEncoder(nn.Module):
    """`linear_proj_audio` has, as published, two places that only transpose: 1, and after every layer's activation and
    matrix none, so the matrices stand at 3, 5 and so on."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self._config = config
        sizes = EncoderSizes(
            mel_bins=config.bins,
            width=config.hidden,
            heads=config.heads,
            inner=4 * config.hidden,
            layers=config.layers,
            positions=config.positions,
        )
        self.audio = WhisperEncoder(sizes)
        convolution = nn.Conv1d(
            config.hidden, config.output, config.kernel, stride=config.stride, padding=config.kernel // 2
        )
        deeper = [
            layer for _ in range(1, config.depth) for layer in (nn.GELU(), nn.Linear(config.output, config.output))
        ]
        self.linear_proj_audio = nn.Sequential(convolution, nn.Identity(), *deeper)

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        """One clip's log-mel spectrum [bins, frames] -> [tokens, output]."""
        convolution, *deeper = self.linear_proj_audio
        x = convolution(self.audio(features).T[None])[0].T
        for layer in deeper:
            x = layer(x)
        return F.normalize(x, dim=-1) if self._config.normed else x


class ClipEncoder:
    """Clips -> ClipEmbeds: each clip by itself."""

    def __init__(self, encoder: AudioEncoder) -> None:
        self._encoder = encoder
        weight = encoder.audio.conv1.weight
        self._device, self._dtype = weight.device, weight.dtype

    @torch.inference_mode()
    def __call__(self, clips: Clips) -> ClipEmbeds:
        spectra = clips.features.to(self._device, self._dtype).split(clips.lengths.tolist(), dim=1)
        return ClipEmbeds(torch.cat([self._encoder(spectrum) for spectrum in spectra]).float().cpu())


def load_audio_encoder(
    path: str | Path, config: EncoderConfig, dtype: torch.dtype, device: str, load_format: LoadFormat = "auto"
) -> AudioEncoder:
    """Of the checkpoint at `path`. Raises `CheckpointError`."""
    with on_meta():
        encoder = AudioEncoder(config)
    if is_dummy(load_format):
        return draw_weights(encoder, dtype, device)
    whisper = read_tensors(path, "audio.", dtype, device)
    tensors = {f"audio.{from_openai(name)}": tensor for name, tensor in whisper.items()}
    projection = read_tensors(path, "linear_proj_audio.", dtype, device)
    tensors |= {f"linear_proj_audio.{name}": tensor for name, tensor in projection.items()}
    return assign(encoder, tensors, "audio encoder")
