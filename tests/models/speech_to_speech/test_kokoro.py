"""What goes into the network, and what is left of what comes out."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from omni_python.models.loading.checkpoint import CheckpointError
from omni_python.models.speech_to_speech.kokoro import Kokoro, pieces, without_silence

IDS = {" ": 9, **{letter: number for number, letter in enumerate("abcdef")}}


@given(st.lists(st.integers(1, 700), max_size=30))
def test_pieces_fit_and_nothing_is_lost(lengths: list[int]) -> None:
    words = ["abcdef"[n % 6] * length for n, length in enumerate(lengths)]
    cut = list(pieces(" ".join(words), IDS))
    assert all(1 <= len(piece) <= 510 for piece in cut)
    assert [i for piece in cut for i in piece if i != 9] == [IDS[letter] for word in words for letter in word]
    assert all(piece[0] != 9 and piece[-1] != 9 for piece in cut)


def test_short_texts_are_one_piece_without_what_is_unknown() -> None:
    assert list(pieces("ab ?c", IDS)) == [[0, 1, 9, 2]]
    assert list(pieces("", IDS)) == list(pieces("??", IDS)) == []


def test_silence_at_the_ends_is_short() -> None:
    samples = np.zeros(24000, np.float32)
    samples[10000:12001] = 0.5
    left = without_silence(samples)
    assert len(left) == 1200 + 2000 + 4800
    assert not left[:1200].any() and left[1200:3201].all() and not left[3201:].any()
    assert np.array_equal(without_silence(samples, 0.05), left[: 1200 + 2000 + 1200]), "within a sentence"
    assert np.array_equal(without_silence(samples[:9000]), samples[:9000])


def test_another_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "model.onnx").write_bytes(b"no network")
    with pytest.raises(CheckpointError, match=r"cannot load .*model\.onnx"):
        Kokoro(tmp_path)
