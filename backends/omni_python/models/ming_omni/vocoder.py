"""The vocoder: latents of one or more pieces of speech to a waveform."""

from __future__ import annotations

import torch

from omni_python.models.ming_omni.architecture import VAEConfig
from omni_python.models.ming_omni.audio_vae import AudioDecoder


class LatentVocoder:
    """Decodes windows of latents. Each piece is decoded by itself: where it ends is its own end, whatever follows."""

    trim = 0

    def __init__(self, decoder: AudioDecoder, config: VAEConfig) -> None:
        self._decoder = decoder
        weight = decoder.fc1.weight
        self._device, self._dtype = weight.device, weight.dtype
        self.sample_rate = config.sample_rate
        self.samples_per_frame = config.samples_per_latent

    def decode(self, codes: torch.Tensor, context: int = 0) -> torch.Tensor:
        """`codes` float32 [B, latent + 1, n] (see `Latents`), of which the first `context` were decoded before ->
        the samples after those: float32 [B, (n - context) * samples_per_frame], on the CPU."""
        numbers, latents = codes[:, -1].long(), codes[:, :-1].transpose(1, 2).to(self._device, self._dtype)
        if bool((numbers == numbers[:, :1]).all()):
            return self._samples(latents, context)
        return torch.cat([self._row(latents[row : row + 1], numbers[row], context) for row in range(len(codes))])

    def _row(self, latents: torch.Tensor, numbers: torch.Tensor, context: int) -> torch.Tensor:
        parts, start = [], 0
        for size in torch.unique_consecutive(numbers, return_counts=True)[1].tolist():
            if start + size > context:
                parts.append(self._samples(latents[:, start : start + size], max(0, context - start)))
            start += size
        return torch.cat(parts, dim=1)

    def _samples(self, latents: torch.Tensor, context: int) -> torch.Tensor:
        samples: torch.Tensor = self._decoder(latents)[:, context * self.samples_per_frame :]
        return samples.float().cpu()
