"""Speech as clients get it in bytes: 16-bit samples, bare or as a WAV file."""

from __future__ import annotations

import io
import wave

import numpy as np


def pcm16(samples: np.ndarray) -> bytes:
    """Float samples [n] in -1..1 as little-endian int16; what is beyond is clipped."""
    return (np.clip(samples, -1.0, 1.0) * 32767.0).round().astype("<i2").tobytes()


def wav_file(samples: np.ndarray, sample_rate: int) -> bytes:
    """A whole 16-bit mono WAV file of float samples [n] in -1..1."""
    return wav_of_pcm16(pcm16(samples), sample_rate)


def wav_of_pcm16(data: bytes, sample_rate: int) -> bytes:
    """A whole 16-bit mono WAV file of little-endian int16 samples."""
    buffer = io.BytesIO()
    with wave.open(buffer, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(sample_rate)
        file.writeframes(data)
    return buffer.getvalue()
