"""Log-mel spectra, as Whisper and what came after it hear them."""

from __future__ import annotations

import math

import numpy as np
import torch


def log_mel(samples: torch.Tensor, filters: torch.Tensor, fft: int, hop: int) -> torch.Tensor:
    """Samples [clips, n] to [clips, mel bins, n / hop]: decades, from 8 below a clip's loudest up, as Whisper scales
    them. `filters` [mel bins, fft / 2 + 1]."""
    window = torch.hann_window(fft, device=samples.device)
    power = torch.stft(samples, fft, hop, window=window, return_complex=True)[..., :-1].abs() ** 2
    decades = (filters @ power).clamp(min=1e-10).log10()
    return (torch.maximum(decades, decades.amax(dim=(1, 2), keepdim=True) - 8.0) + 4.0) / 4.0


def mel_filters(bins: int, fft: int, sample_rate: int) -> torch.Tensor:
    """Triangles between 0 and 8 kHz, evenly apart on Slaney's mel scale, of area 1: float32 [bins, fft / 2 + 1].

    The scale is linear up to 1 kHz (3 mel for 200 Hz) and logarithmic above (27 mel for a factor of 6.4).
    """
    knee, step = 15.0, math.log(6.4) / 27.0
    highest = knee + math.log(8000.0 / 1000.0) / step
    mels = np.linspace(0.0, highest, bins + 2)
    edges = np.where(mels < knee, mels * 200.0 / 3.0, 1000.0 * np.exp((mels - knee) * step))
    left, middle, right = edges[:-2, None], edges[1:-1, None], edges[2:, None]
    frequencies = np.linspace(0.0, sample_rate // 2, fft // 2 + 1)
    rising, falling = (frequencies - left) / (middle - left), (right - frequencies) / (right - middle)
    triangles = np.maximum(0.0, np.minimum(rising, falling)) * 2.0 / (right - left)
    return torch.from_numpy(triangles).float()
