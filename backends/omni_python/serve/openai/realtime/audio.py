"""Samples between the API's 16-bit bytes and the rates of networks and pipelines."""

from __future__ import annotations

import av
import numpy as np

from omni_python.serve.openai.encoding import SpeechEncoder, audio_frame

BYTES = 2
"""Of one sample."""


def samples_of(data: bytes) -> np.ndarray:
    """Little-endian int16 as float32 [n] in -1..1."""
    return np.frombuffer(data, "<i2").astype(np.float32) / 32768


class Resampler:
    """One stream of float32 samples [n] to another rate, piece by piece."""

    def __init__(self, from_rate: int, to_rate: int) -> None:
        self._from, self._count = from_rate, 0
        self._resampler = av.AudioResampler("flt", "mono", to_rate) if from_rate != to_rate else None

    def push(self, samples: np.ndarray) -> np.ndarray:
        """The samples, float32 [m] at the other rate, that follow from these and those before."""
        if self._resampler is None or not len(samples):
            return samples
        frame = audio_frame(samples, self._from, self._count)
        self._count += len(samples)
        return self._joined(self._resampler.resample(frame))

    def end(self) -> np.ndarray:
        """The samples that are left, once no more come."""
        if self._resampler is None or not self._count:
            return np.empty(0, np.float32)
        return self._joined(self._resampler.resample(None))

    def _joined(self, frames: list[av.AudioFrame]) -> np.ndarray:
        return np.concatenate([np.empty(0, np.float32), *(frame.to_ndarray()[0] for frame in frames)])


class SpokenPcm:
    """A pipeline's speech as the session wants it: int16 at `to_rate` Hz, `speed` times as fast."""

    def __init__(self, from_rate: int, to_rate: int, speed: float) -> None:
        self._resampler = Resampler(from_rate, to_rate)
        self._encoder = SpeechEncoder("pcm", to_rate, speed)
        self._rate, self._bytes = to_rate, 0

    @property
    def milliseconds(self) -> int:
        """Of the speech that was given out."""
        return self._bytes // BYTES * 1000 // self._rate

    def push(self, samples: np.ndarray) -> bytes:
        """Bytes of the next samples, float32 [n] at the pipeline's rate."""
        return self._count(self._encoder.encode(self._resampler.push(samples)))

    def end(self) -> bytes:
        """The bytes that are left, once no more samples come."""
        return self._count(self._encoder.encode(self._resampler.end()) + self._encoder.close())

    def _count(self, data: bytes) -> bytes:
        self._bytes += len(data)
        return data
