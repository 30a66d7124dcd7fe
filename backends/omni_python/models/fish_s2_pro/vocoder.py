"""The vocoder: codec frames to a waveform at 44.1 kHz."""

from __future__ import annotations

import torch

from omni_python.models.fish_s2_pro.codec import CodecDecoder
from omni_python.models.fish_s2_pro.info import SAMPLE_RATE


class S2Vocoder:
    """Decodes windows of frames; no sample depends on a later frame, so none is trimmed."""

    sample_rate = SAMPLE_RATE
    trim = 0

    def __init__(self, decoder: CodecDecoder) -> None:
        self._decoder = decoder
        self._device = next(decoder.parameters()).device
        self.samples_per_frame = decoder.sizes.samples_per_frame
        self.receptive_frames = decoder.receptive_frames
        """With so many frames of context a window sounds as it does in the whole speech."""

    def decode(self, codes: torch.Tensor, context: int = 0) -> torch.Tensor:
        """`codes` int64 [B, books, n], of which the first `context` frames were decoded before -> the samples after
        those: float32 [B, (n - context) * samples_per_frame] in -1..1, on the CPU."""
        samples: torch.Tensor = self._decoder(codes.to(self._device), context)
        return samples.float().cpu()
