"""What Whisper hears: the logarithm of a mel spectrogram."""

from __future__ import annotations

import math

import numpy as np
import torch

SAMPLE_RATE = 16000
"""Hz."""
WINDOW, HOP = 400, 160
"""Samples of a frame, and from one to the next."""
SAMPLES_PER_POSITION = 2 * HOP
"""Two frames make one vector of the encoder."""


class LogMel:
    """float32 [n] at 16 kHz -> float32 [bins, n / 160], as OpenAI's `log_mel_spectrogram` of whisper computes it."""

    def __init__(self, bins: int, device: str = "cpu") -> None:
        self._filters = torch.from_numpy(mel_filters(bins)).to(device)
        self._window = torch.hann_window(WINDOW, device=device)

    def __call__(self, samples: torch.Tensor) -> torch.Tensor:
        spectrum = torch.stft(samples, WINDOW, HOP, window=self._window, return_complex=True)
        power = spectrum[:, :-1].abs() ** 2
        logs = (self._filters @ power).clamp(min=1e-10).log10()
        return (torch.maximum(logs, logs.max() - 8) + 4) / 4


def mel_filters(bins: int) -> np.ndarray:
    """float32 [bins, WINDOW // 2 + 1]: triangles of equal area (Slaney's Auditory Toolbox) from 0 Hz to the half of the
    sample rate."""
    frequencies = np.linspace(0, SAMPLE_RATE / 2, WINDOW // 2 + 1)
    edges = _hertz(np.linspace(0, _mel(SAMPLE_RATE / 2), bins + 2))
    widths = np.diff(edges)
    slopes = edges[:, None] - frequencies
    rising, falling = -slopes[:-2] / widths[:-1, None], slopes[2:] / widths[1:, None]
    triangles = np.maximum(0, np.minimum(rising, falling))
    areas: np.ndarray = 2 / (edges[2:] - edges[:-2])
    return (triangles * areas[:, None]).astype(np.float32)


_LINEAR = 3 / 200
"""Slaney's scale: mels for a Hz up to 1000 Hz, and logarithmic beyond, with 27 mels to a factor of 6.4."""
_CORNER, _STEP = 1000.0, math.log(6.4) / 27


def _mel(hertz: float) -> float:
    return _CORNER * _LINEAR + math.log(hertz / _CORNER) / _STEP if hertz > _CORNER else hertz * _LINEAR


def _hertz(mels: np.ndarray) -> np.ndarray:
    corner = _CORNER * _LINEAR
    return np.where(mels > corner, _CORNER * np.exp(_STEP * (mels - corner)), mels / _LINEAR)
