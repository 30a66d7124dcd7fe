"""Spoken utterances whose words are known, and a second recogniser that tells what the pipeline's speech says."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from pocketsphinx import Decoder

from omni_python.models.speech_to_speech.packages import Package
from omni_python.models.speech_to_speech.spoken_text import spell_out
from omni_python.preprocessing.audio import SAMPLE_RATE, resample

RECORDINGS = Package(
    "pytest-audioeval", "0.1.3", "8b97369347232d43180dd9860189c547ccc8dedb42b7c21d511ddc5a05ef7ecc", "MIT"
)
"""4 MB; its recordings have 16 kHz."""

_TO_TEN = "One two three four five six seven eight nine ten."
_HELLO = "Hello world."
RECORDED: dict[str, str] = {
    "en/hello_world": _HELLO,
    "en/counting": _TO_TEN,
    "en/quick_brown_fox": "The quick brown fox jumps over the lazy dog.",
    "es/hola_mundo": _HELLO,
    "es/conteo": _TO_TEN,
    "es/pangrama": "The fast Hindu bat was happily eating thistle and kiwi.",
    "fr/bonjour_monde": _HELLO,
    "fr/comptage": _TO_TEN,
    "fr/pangrama": "Take this old whisky to the blond judge who smokes.",
    "it/ciao_mondo": _HELLO,
    "it/conteggio": _TO_TEN,
    "it/pangrama": "What a despicable wrong fez does us harm.",
    "pt/ola_mundo": _HELLO,
    "pt/contagem": _TO_TEN,
    "pt/pangrama": "The fast brown fox jumps over the lazy dog.",
}
"""Recordings, and what is said in them in English."""

HARVARD = (
    "The birch canoe slid on the smooth planks.",
    "Glue the sheet to the dark blue background.",
    "It's easy to tell the depth of a well.",
    "These days a chicken leg is a rare dish.",
    "Rice is often served in round bowls.",
    "The juice of lemons makes fine punch.",
    "The box was thrown beside the parked truck.",
    "The hogs were fed chopped corn and garbage.",
    "Four hours of steady work faced us.",
    "A large size in stockings is hard to sell.",
)
"""The first list of the Harvard sentences (IEEE Recommended Practice for Speech Quality Measurements, 1969)."""


def fetch_recordings(folder: Path) -> dict[str, np.ndarray]:
    """The WAV files of `RECORDED`, uint8 [n]. Raises `NotFetched`."""
    files = RECORDINGS.fetch(folder)
    return {
        name: np.frombuffer(files.read(f"pytest_audioeval/samples/audio/{name}.wav"), np.uint8) for name in RECORDED
    }


class Judge:
    """pocketsphinx with its own American English models: another kind of recogniser than Whisper."""

    def __init__(self) -> None:
        self._decoder = Decoder(samprate=SAMPLE_RATE, loglevel="FATAL")

    def hear(self, samples: np.ndarray, sample_rate: int) -> str:
        """What speech, float32 [n] in -1..1, sounds like."""
        silence = np.zeros(SAMPLE_RATE // 3, np.float32)
        padded = np.concatenate([silence, resample(samples, sample_rate, SAMPLE_RATE), silence])
        self._decoder.start_utt()
        self._decoder.process_raw((padded * 32767).astype("<i2").tobytes(), full_utt=True)
        self._decoder.end_utt()
        best = self._decoder.hyp()
        return best.hypstr if best is not None else ""


@dataclass(frozen=True)
class WordErrors:
    """Words to be inserted, left out or replaced to get from one text to another, of so many."""

    errors: int
    words: int

    @property
    def rate(self) -> float:
        return self.errors / max(1, self.words)


def word_errors(pairs: Sequence[tuple[str, str]]) -> WordErrors:
    """Of texts, each with what was heard of it; numbers and the words for them are the same."""
    spelled = [(_words(said), _words(heard)) for said, heard in pairs]
    return WordErrors(sum(_distance(*pair) for pair in spelled), sum(len(said) for said, _ in spelled))


def _words(text: str) -> list[str]:
    return re.findall(r"[a-z']+", spell_out(text).lower().replace("-", " "))


def _distance(said: list[str], heard: list[str]) -> int:
    """Levenshtein's, of words."""
    row = list(range(len(heard) + 1))
    for at, word in enumerate(said, start=1):
        before, row = row, [at]
        for index, other in enumerate(heard):
            row.append(min(before[index] + (word != other), before[index + 1] + 1, row[index] + 1))
    return row[-1]
