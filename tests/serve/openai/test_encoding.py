"""Encoded speech, decoded again by FFmpeg."""

from __future__ import annotations

import io
import wave

import av
import numpy as np
import pytest

from omni_python.proto.wav import pcm16
from omni_python.serve.openai.encoding import FORMATS, SpeechEncoder, encoded

LOSSLESS = ("wav", "flac", "pcm", "pcm16")
PADDING = {"mp3": 1152 * 3, "aac": 1024 * 3}
"""Samples that a codec's delay and whole frames may add."""


def tone(seconds: float, sample_rate: int, hertz: float = 440.0) -> np.ndarray:
    time = np.arange(int(seconds * sample_rate)) / sample_rate
    return (0.5 * np.sin(2 * np.pi * hertz * time)).astype(np.float32)


def decoded(name: str, data: bytes, sample_rate: int) -> tuple[np.ndarray, int]:
    """Samples in -1..1, and their rate."""
    if name.startswith("pcm"):
        return np.frombuffer(data, "<i2") / 32767.0, sample_rate
    with av.open(io.BytesIO(data), "r") as container:
        resampler = av.AudioResampler("flt", "mono")
        frames = [f for frame in container.decode(audio=0) for f in resampler.resample(frame)]
        return np.concatenate([f.to_ndarray().reshape(-1) for f in frames]), frames[0].sample_rate


def pitch(samples: np.ndarray, sample_rate: int) -> float:
    return float(np.argmax(np.abs(np.fft.rfft(samples))) * sample_rate / len(samples))


@pytest.mark.parametrize("sample_rate", [24000, 44100])
@pytest.mark.parametrize("name", FORMATS)
def test_pieces_make_the_file_that_the_whole_makes(name: str, sample_rate: int) -> None:
    speech = tone(2.0, sample_rate)
    encoder = SpeechEncoder(name, sample_rate)
    pieces = [encoder.encode(piece) for piece in np.array_split(speech, [1, 700, 12345, 30000])]
    samples, rate = decoded(name, b"".join(pieces) + encoder.close(), sample_rate)
    whole, whole_rate = decoded(name, encoded(name, speech, sample_rate), sample_rate)
    assert rate == whole_rate == (48000 if name == "opus" else sample_rate)
    assert len(samples) == len(whole)
    assert 0 <= len(samples) - 2.0 * rate <= PADDING.get(name, 0)
    assert abs(pitch(samples, rate) - 440) < 1
    if name in LOSSLESS:
        np.testing.assert_allclose(samples, speech, atol=1.1 / 32767)
        np.testing.assert_array_equal(samples, whole)


@pytest.mark.parametrize("name", FORMATS)
def test_a_stream_begins_before_it_ends(name: str) -> None:
    encoder = SpeechEncoder(name, 24000)
    early = b"".join(encoder.encode(piece) for piece in np.array_split(tone(2.0, 24000), 40)[:20])
    assert len(early) > 2000


def test_players_accept_a_streamed_wav() -> None:
    speech = tone(1.5, 24000)
    encoder = SpeechEncoder("wav", 24000)
    data = b"".join(encoder.encode(piece) for piece in np.array_split(speech, 7)) + encoder.close()
    with wave.open(io.BytesIO(data)) as file:  # Python's own reader
        assert (file.getframerate(), file.getnchannels(), file.getsampwidth()) == (24000, 1, 2)
        assert file.readframes(file.getnframes()) == pcm16(speech)
    with av.open(io.BytesIO(data)) as container:  # FFmpeg
        assert container.format.name == "wav"
    samples, rate = decoded("wav", data, 24000)
    assert rate == 24000 and len(samples) == len(speech)


@pytest.mark.parametrize("speed", [0.25, 0.7, 1.5, 4.0])
def test_speed_changes_the_length_and_not_the_pitch(speed: float) -> None:
    encoder = SpeechEncoder("pcm", 24000, speed)
    data = b"".join(encoder.encode(piece) for piece in np.array_split(tone(3.0, 24000), 17)) + encoder.close()
    samples = np.frombuffer(data, "<i2") / 32767.0
    assert len(samples) / 24000 == pytest.approx(3.0 / speed, abs=0.06)
    assert abs(pitch(samples, 24000) - 440) < 2


def test_no_speech_is_a_valid_empty_file() -> None:
    assert encoded("wav", np.empty(0, np.float32), 24000)[:4] == b"RIFF"
    assert SpeechEncoder("pcm", 24000).close() == b""


def test_loud_samples_are_clipped() -> None:
    assert np.frombuffer(pcm16(np.array([-2.0, 0.0, 2.0])), "<i2").tolist() == [-32767, 0, 32767]
