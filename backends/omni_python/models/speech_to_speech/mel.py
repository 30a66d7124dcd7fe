"""What Whisper hears: the logarithm of a mel spectrogram."""

from __future__ import annotations

import torch

from omni_python.layers.log_mel import log_mel, mel_filters

SAMPLE_RATE = 16000
"""Hz."""
WINDOW, HOP = 400, 160
"""Samples of a frame, and from one to the next."""
SAMPLES_PER_POSITION = 2 * HOP
"""Two frames make one vector of the encoder."""


class LogMel:
    """float32 [n] at 16 kHz -> float32 [bins, n / 160], as OpenAI's `log_mel_spectrogram` of whisper computes it."""

    def __init__(self, bins: int, device: str = "cpu") -> None:
        self._filters = mel_filters(bins, WINDOW, SAMPLE_RATE).to(device)

    def __call__(self, samples: torch.Tensor) -> torch.Tensor:
        return log_mel(samples[None], self._filters, WINDOW, HOP)[0]
