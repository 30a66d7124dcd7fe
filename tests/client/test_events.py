"""Gathering events, and the WAV files."""

from __future__ import annotations

import wave
from pathlib import Path

import numpy as np
import pytest

from omni_python.client import Answer, AudioChunk, Finished, TextDelta, save_wav


def read_wav(path: Path) -> tuple[np.ndarray, int]:
    with wave.open(str(path)) as file:
        assert (file.getnchannels(), file.getsampwidth()) == (1, 2)
        return np.frombuffer(file.readframes(file.getnframes()), "<i2"), file.getframerate()


def test_wav_holds_the_samples(tmp_path: Path) -> None:
    samples = np.random.default_rng().uniform(-1, 1, 4321).astype(np.float32)
    save_wav(tmp_path / "a.wav", samples, 24_000)
    pcm, rate = read_wav(tmp_path / "a.wav")
    assert rate == 24_000 and len(pcm) == len(samples)
    assert np.abs(pcm / 32767 - samples).max() <= 0.503 / 32767  # half a step, and float32's rounding of the product


def test_wav_clips(tmp_path: Path) -> None:
    save_wav(tmp_path / "a.wav", np.array([1.0, -1.0, 1.7, -3.0, 0.0], np.float32), 16_000)
    pcm, rate = read_wav(tmp_path / "a.wav")
    assert rate == 16_000 and pcm.tolist() == [32767, -32767, 32767, -32767, 0]


def test_answer_joins_text_and_speech(tmp_path: Path) -> None:
    samples = np.random.default_rng().uniform(-1, 1, 12_000).astype(np.float32)
    end = Finished("length", {"output_tokens": 2}, 0.1, 0.2, 0.25)
    pieces = [AudioChunk(piece, 24_000) for piece in np.split(samples, [1, 5000, 5000])]
    answer = Answer.collect([TextDelta("He"), *pieces, TextDelta("llo"), end])
    assert (answer.text, answer.sample_rate, answer.finished) == ("Hello", 24_000, end)
    np.testing.assert_array_equal(answer.audio, samples)
    assert answer.audio_seconds == 0.5 and answer.real_time_factor == 0.5
    answer.save_wav(tmp_path / "a.wav")
    assert len(read_wav(tmp_path / "a.wav")[0]) == 12_000


def test_an_answer_without_its_end_is_none() -> None:
    with pytest.raises(ValueError, match="Finished"):
        Answer.collect([TextDelta("He")])
