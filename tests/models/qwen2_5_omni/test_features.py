"""Sound to log-mel spectra, against Hugging Face's feature extractor."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import WhisperFeatureExtractor

from omni_python.models.qwen2_5_omni.features import Media, MediaLimits, MediaReader

LIMITS = MediaLimits(audio_seconds=300.0, image_pixels=1, tokens=1)


@pytest.mark.parametrize("side", ["left", "right"])
def test_clips_are_heard_as_beside_each_other(qwen25: Path, side: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is loudest where its silence begins, on either side."""
    extractor = WhisperFeatureExtractor.from_pretrained(qwen25)
    reader = MediaReader(qwen25, LIMITS)
    for each in (extractor, reader._hear):
        monkeypatch.setattr(each, "padding_side", side)
    random = np.random.default_rng()
    lengths = [48000, *(int(length) for length in random.integers(800, 16000, 6))]
    clips = [random.normal(0, 0.001, length).astype(np.float32) for length in lengths]
    for clip in clips:
        clip[:3] = clip[-3:] = 0.9
    made = reader.features(Media(clips=clips))
    assert made is not None and made.audio is not None and made.audio_lengths is not None
    heard = extractor(
        clips,
        sampling_rate=16000,
        padding="max_length",
        max_length=80000,
        return_attention_mask=True,
        return_tensors="pt",
    )
    mask = heard["attention_mask"].bool()
    assert made.audio_lengths.tolist() == mask.sum(dim=1).tolist()
    expected = torch.cat([spectrum[:, kept] for spectrum, kept in zip(heard["input_features"], mask, strict=True)], 1)
    # where a vector operation's last few values are rounded otherwise
    torch.testing.assert_close(made.audio, expected, rtol=0, atol=1e-6)


def test_many_short_clips_take_little_memory_beside_a_long_one(qwen25: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[int] = []
    stft = torch.stft

    def counted(samples: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        taken.append(samples.numel())
        return stft(samples, *args, **kwargs)

    monkeypatch.setattr(torch, "stft", counted)
    clips = [np.zeros(160000, np.float32), *[np.zeros(800, np.float32)] * 20]
    made = MediaReader(qwen25, LIMITS).features(Media(clips=clips))
    assert made is not None and made.audio_lengths is not None
    assert made.audio_lengths.tolist() == [1000, *[5] * 20]
    assert sum(taken) < 160000 + 20 * 2000
