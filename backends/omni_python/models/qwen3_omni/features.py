"""Decoded sound to what the encoder takes: log-mel spectra, equal to those of transformers' WhisperFeatureExtractor."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from omni_python.layers.log_mel import log_mel, mel_filters
from omni_python.models.loading.checkpoint import load_json
from omni_python.models.qwen3_omni.payloads import AudioInput
from omni_python.proto.errors import InvalidArgument


class AudioFeatures:
    """Log-mel spectra with the checkpoint's preprocessor_config.json."""

    def __init__(self, model_path: str | Path) -> None:
        given = load_json(model_path, "preprocessor_config.json")
        self.sample_rate: int = given.get("sampling_rate", 16000)
        self._hop: int = given.get("hop_length", 160)
        self._fft: int = given.get("n_fft", 400)
        self._mel = mel_filters(given.get("feature_size", 80), self._fft, self.sample_rate)
        self._shortest: int = self._fft // 2 + 1

    def __call__(self, clips: Sequence[np.ndarray]) -> AudioInput:
        """Features of mono float32 clips [n] at `sample_rate`, all clips of one request at once.

        The reference pads clips to the longest before the spectrum is taken: a shorter one's last frame hears silence
        after its end. Here each is padded by no more than its frames hear: many short clips beside a long one would
        fill the memory otherwise.
        """
        short = min(clip.size for clip in clips)
        if short < self._shortest:
            raise InvalidArgument(
                f"audio of {short} samples is too short; at least {self._shortest} at {self.sample_rate} Hz are needed"
            )
        longest = max(clip.size for clip in clips)
        spectra = [self._spectrum(clip, longest) for clip in clips]
        lengths = [spectrum.shape[1] for spectrum in spectra]
        return AudioInput(features=torch.cat(spectra, dim=1).contiguous(), lengths=torch.tensor(lengths))

    def _spectrum(self, clip: np.ndarray, longest: int) -> torch.Tensor:
        """[mel bins, frames] of a clip that is one of several, `longest` samples at most."""
        # Frames centred up to half a window after the end hear some of the clip, and count for its loudest value. They
        # reach half a window further; the last frame is dropped.
        padded = min(clip.size + self._fft + self._hop, longest)
        samples = torch.zeros(1, padded)
        samples[0, : clip.size] = torch.from_numpy(np.ascontiguousarray(clip, np.float32))
        spectrum = log_mel(samples, self._mel, self._fft, self._hop)[0]
        return spectrum[:, : math.ceil(clip.size / self._hop)]


def audio_tokens(frames: int, window: int = 50) -> int:
    """Embeddings that the audio encoder makes of that many mel frames.

    Three convolutions of stride 2 over chunks of 2 * `window` frames, each chunk apart: 13 for a full chunk of 100.
    """
    chunk = 2 * window
    rest = frames % chunk
    for _ in range(3):
        rest = (rest - 1) // 2 + 1
    return frames // chunk * 13 + rest
