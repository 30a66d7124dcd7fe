# ruff: noqa: RUF001  (phonemes and typographic signs)
"""Kokoro-82M (hexgrad; after StyleTTS 2, Li et al. 2023) as an ONNX network: phonemes and a voice to speech."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import onnxruntime

from omni_python.models.loading.checkpoint import CheckpointError, load_json
from omni_python.models.speech_to_speech.convolutions import multiplies_signed_bytes_exactly, with_signed_inputs
from omni_python.models.speech_to_speech.info import SAMPLE_RATE

_LONGEST = 510
"""Phonemes of one call, which also picks the voice's style: there is one for each number of them."""
_STYLE = 256
_QUIET = 0.01
"""Amplitude. What is below it at the ends is cut to `_BEFORE` and `_AFTER` seconds: Kokoro leaves more than half a
second of it, which would stand before the first sound and add up between sentences."""
_BEFORE, _AFTER, _WITHIN = 0.05, 0.2, 0.05
"""`_WITHIN` instead of `_AFTER` where no sign ends what was spoken: the sentence goes on."""
_SIGNS = '.,!?;:…—)”"'
_WARM_UP = "hɪɹ wˌi ɑɹ, ænd ðɪs ɪz hˌW wˌi spˈik."


class Kokoro:
    """Raises `CheckpointError` where a file is missing or another one."""

    def __init__(self, path: str | Path, threads: int = 0) -> None:
        """`path` holds model.onnx, vocabulary.json and voices/<name>.bin; 0 `threads` are as many as cores."""
        folder = Path(path)
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        # Threads that spin would take the cores from the other stages.
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        try:
            network = (folder / "model.onnx").read_bytes()
            if multiplies_signed_bytes_exactly():
                network = with_signed_inputs(network)
            self._session = onnxruntime.InferenceSession(network, options, providers=["CPUExecutionProvider"])
        except Exception as error:  # of a class of its own for each of the library's errors
            raise CheckpointError(f"cannot load {folder / 'model.onnx'}: {error}") from error
        self._ids: dict[str, int] = load_json(folder, "vocabulary.json")["vocab"]
        self._signs = {self._ids[sign] for sign in _SIGNS if sign in self._ids}
        self._styles = {file.stem: _style(file) for file in sorted((folder / "voices").glob("*.bin"))}

    def speak(self, phonemes: str, voice: str, speed: float = 1.0) -> np.ndarray:
        """float32 [n] in -1..1 at `info.SAMPLE_RATE`; n is 0 where no phoneme is known."""
        style = self._styles[voice]
        spoken = [self._speak(piece, style, speed) for piece in pieces(phonemes, self._ids)]
        return np.concatenate(spoken) if spoken else np.zeros(0, np.float32)

    def warm_up(self) -> None:
        """Speak once, so that the first request finds the memory that this takes."""
        self.speak(_WARM_UP, next(iter(self._styles)))

    def _speak(self, ids: list[int], style: np.ndarray, speed: float) -> np.ndarray:
        inputs = {
            "tokens": np.array([[0, *ids, 0]], np.int64),
            "style": style[len(ids) - 1][None],
            "speed": np.array([speed], np.float32),
        }
        (samples,) = self._session.run(["audio"], inputs)
        after = _AFTER if ids[-1] in self._signs else _WITHIN
        return without_silence(np.asarray(samples, np.float32).reshape(-1).clip(-1, 1), after)


def pieces(phonemes: str, ids: Mapping[str, int]) -> Iterator[list[int]]:
    """The ids of `phonemes`, unknown ones left out, in pieces of one call each; cut between words where that can be."""
    piece: list[int] = []
    for word in phonemes.split(" "):
        more = [ids[phoneme] for phoneme in word if phoneme in ids]
        if piece and len(piece) + 1 + len(more) > _LONGEST:
            yield piece
            piece = []
        while len(more) > _LONGEST:
            yield more[:_LONGEST]
            more = more[_LONGEST:]
        piece += [ids[" "], *more] if piece and more else more
    if piece:
        yield piece


def without_silence(samples: np.ndarray, after: float = _AFTER) -> np.ndarray:
    """`samples` [n] with short silences at their ends, the last of `after` seconds; all of them where all are quiet."""
    (loud,) = np.nonzero(np.abs(samples) > _QUIET)
    if not len(loud):
        return samples
    begin = max(0, int(loud[0]) - int(_BEFORE * SAMPLE_RATE))
    return samples[begin : int(loud[-1]) + int(after * SAMPLE_RATE)]


def _style(file: Path) -> np.ndarray:
    """float32 [510, 256]."""
    try:
        return np.fromfile(file, np.float32).reshape(_LONGEST, _STYLE)
    except (OSError, ValueError) as error:
        raise CheckpointError(f"cannot read the voice {file}: {error}") from error
