"""Sound to text, token by token."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import tokenizers  # type: ignore[import-untyped]
import torch

from omni_python.models.loading.checkpoint import CheckpointError, load_config
from omni_python.models.loading.tokenizer import load_tokenizer
from omni_python.models.speech_to_speech.mel import SAMPLE_RATE, SAMPLES_PER_POSITION, LogMel
from omni_python.models.speech_to_speech.whisper import TextCache, load_whisper

TRANSLATE, TRANSCRIBE = "translate", "transcribe"
TASKS = (TRANSLATE, TRANSCRIBE)

_SILENCE = 0.6
"""Probability of the token for "no speech" from which on a window counts as silent, as in OpenAI's whisper."""
_EDGE = 0.1
"""Seconds: the length of what is compared when a quiet place to cut at is sought."""
_REPEATED = 12
"""Tokens: of a phrase said again and again."""


@dataclass(frozen=True)
class Piece:
    """Text that follows what came before, in which language, and in how many tokens."""

    text: str
    language: str
    tokens: int


class Recogniser:
    """Whisper, greedy and without timestamps.

    A sound is heard in windows of at most `window_s` seconds, cut where it is quiet. `margin_s` seconds of silence are
    put after each; Whisper was trained with silence up to 30 s, but what it hears changes little with less, and the
    time does.
    """

    def __init__(
        self,
        path: str | Path,
        dtype: torch.dtype = torch.float32,
        device: str = "cpu",
        window_s: float = 25.0,
        margin_s: float = 10.0,
    ) -> None:
        self._model = load_whisper(path, dtype, device)
        self._tokenizer = load_tokenizer(path)
        self._dtype, self._device = dtype, device
        self._mel = LogMel(self._model.sizes.encoder.mel_bins, device)
        self._longest = self._model.sizes.encoder.positions * SAMPLES_PER_POSITION
        self._window = min(int(window_s * SAMPLE_RATE), self._longest)
        self._margin = int(margin_s * SAMPLE_RATE)
        config = load_config(path)
        self._never: list[int] = config.get("suppress_tokens") or []
        self._never_first: list[int] = config.get("begin_suppress_tokens") or []
        self._start, self._end = self._id("<|startoftranscript|>"), self._id("<|endoftext|>")
        self._silent = self._id("<|nocaptions|>", "<|nospeech|>")
        self._untimed = self._id("<|notimestamps|>")
        self._tasks = {task: self._id(f"<|{task}|>") for task in TASKS}
        self._languages = languages(self._tokenizer)

    @torch.inference_mode()
    def hear(self, samples: np.ndarray, task: str, language: str | None, max_tokens: int) -> Iterator[Piece]:
        """`samples` float32 [n] at 16 kHz. Gives text as it is certain, at most `max_tokens` tokens of it; nothing
        where nothing is said. `language` is that of the sound, None each window's own."""
        for window in self._windows(samples):
            if max_tokens < 1:
                return
            for piece in self._hear_window(window, task, language, max_tokens):
                max_tokens -= piece.tokens
                yield piece

    @torch.inference_mode()
    def warm_up(self) -> None:
        """Hear a short silence, so that the first request finds what the libraries prepare at their first use."""
        silence = np.zeros(min(3 * SAMPLE_RATE, self._window), np.float32)
        cache = TextCache(self._model.decoder, self._encode(silence))
        for count in (1, 3, 1):
            self._step([self._start] * count, cache)

    def _hear_window(
        self, samples: np.ndarray, task: str, language: str | None, max_tokens: int
    ) -> Generator[Piece, None, None]:
        cache = TextCache(self._model.decoder, self._encode(samples))
        logits = self._step([self._start], cache)
        if logits.softmax(0)[self._silent] > _SILENCE:
            return
        if language is None:
            numbers = list(self._languages.values())
            language = list(self._languages)[int(logits[numbers].argmax())]
        # Asked to translate English, Whisper sometimes rephrases.
        task = TRANSCRIBE if language == "en" else task
        logits = self._step([self._languages[language], self._tasks[task], self._untimed], cache)
        written = "en" if task == TRANSLATE else language
        logits[self._never_first] = -torch.inf
        spoken: list[int] = []
        text, given = "", 0
        while len(spoken) < min(max_tokens, self._model.sizes.text_positions // 2):
            logits[self._never] = -torch.inf
            logits[self._start :] = -torch.inf
            token = int(logits.argmax())
            if token == self._end or repeats([*spoken, token]):
                break
            spoken.append(token)
            longer: str = self._tokenizer.decode(spoken)
            if not longer.endswith("\ufffd"):  # else the rest of a character is to come
                yield Piece(longer[len(text) :], written, len(spoken) - given)
                text, given = longer, len(spoken)
            logits = self._step([token], cache)

    def _encode(self, samples: np.ndarray) -> torch.Tensor:
        length = min(len(samples) + self._margin, self._longest)
        length -= length % -SAMPLES_PER_POSITION
        padded = torch.zeros(length, device=self._device)
        padded[: len(samples)] = torch.from_numpy(samples).to(self._device)
        encoded: torch.Tensor = self._model.encoder(self._mel(padded).to(self._dtype))
        return encoded

    def _step(self, tokens: list[int], cache: TextCache) -> torch.Tensor:
        logits: torch.Tensor = self._model.decoder(torch.tensor(tokens, device=self._device), cache)
        return logits.float()

    def _windows(self, samples: np.ndarray) -> Iterator[np.ndarray]:
        while len(samples) > self._window:
            cut = quietest(samples[: self._window], self._window // 2)
            yield samples[:cut]
            samples = samples[cut:]
        yield samples

    def _id(self, *names: str) -> int:
        for name in names:
            number: int | None = self._tokenizer.token_to_id(name)
            if number is not None:
                return number
        raise CheckpointError(f"the recogniser's tokenizer has no token {names[0]}")


def languages(tokenizer: tokenizers.Tokenizer) -> dict[str, int]:
    """The tokens of the languages of a Whisper tokenizer, by their ISO 639 codes."""
    first, end = (tokenizer.token_to_id(f"<|{name}|>") for name in ("startoftranscript", TRANSLATE))
    return {tokenizer.id_to_token(number).strip("<|>"): number for number in range(first + 1, end)}


def repeats(tokens: Sequence[int]) -> bool:
    """Whether `tokens` end with one phrase at least three times: Whisper does so where it understands nothing."""
    for length in range(1, len(tokens) // 3 + 1):
        times = max(3, -(-_REPEATED // length))
        if len(tokens) >= times * length and list(tokens[-times * length :]) == list(tokens[-length:]) * times:
            return True
    return False


def quietest(samples: np.ndarray, start: int) -> int:
    """The middle of the tenth of a second with the least energy among `samples` [n] from `start` on."""
    size = int(_EDGE * SAMPLE_RATE)
    count = (len(samples) - start) // size
    energies = (samples[start : start + count * size].reshape(count, size) ** 2).sum(axis=1)
    return start + int(energies.argmin()) * size + size // 2
