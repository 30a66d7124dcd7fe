# ruff: noqa: RUF001  (phonemes and typographic signs)
"""English words to the phonemes that Kokoro was trained with: those of misaki's dictionaries."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path

from omni_python.models.loading.checkpoint import CheckpointError
from omni_python.models.speech_to_speech.spoken_text import spell_out

_TOKEN = re.compile(r"[A-Za-z]+(?:'[A-Za-z]+)*'?|[.,!?;:—…()\"“”]+")
_VOWELS = set("AIOQWYaeiouæɑɒɔəɛɜɪʊʌᵻ")
_MARKS = "ˈˌ"

_LAST = "None"
"""misaki's key for how a word sounds at the end of a phrase."""

Entry = str | dict[str, str | None]


class Pronunciation:
    """Text to phonemes.

    Words are looked up as they are written, in lower case, without -s, -ed, -ing or 's; what is in no dictionary is
    spelled where it is an abbreviation, and else sounded by `letters_to_sounds`. Where a word has several sounds, the
    commonest one is taken: parts of speech are not told apart.
    """

    def __init__(self, lexicons: list[Path], letters_to_sounds: Callable[[str], str]) -> None:
        """A word stands for what the first of the `lexicons` that has it says."""
        self._entries: dict[str, Entry] = {}
        for file in reversed(lexicons):
            try:
                self._entries |= json.loads(file.read_text("utf-8"))
            except (OSError, ValueError) as error:
                raise CheckpointError(f"cannot read the dictionary {file}: {error}") from error
        self._letters_to_sounds = letters_to_sounds

    def __call__(self, text: str) -> str:
        tokens = _TOKEN.findall(spell_out(text))
        spoken = ""
        following = ""  # the phonemes after, by which some words go
        for token, after in zip(reversed(tokens), [None, *reversed(tokens[1:])], strict=True):
            if not token[0].isalpha():
                spoken = f"{token}{'' if token[-1] in '(“' else ' '}{spoken}"
                following = ""
                continue
            phonemes = self._special(token, following) or self.word(token, last=after is None or not after[0].isalpha())
            spoken = f"{phonemes}{'' if spoken[:1] in tuple('.,!?;:…)”') else ' '}{spoken}"
            following = phonemes
        return spoken.strip()

    def word(self, word: str, last: bool = False) -> str:
        """One word; `last`: whether a phrase ends with it."""
        for form in dict.fromkeys((word, word.lower(), word.capitalize())):
            if (phonemes := self._look_up(form, last)) is not None:
                return phonemes
        lower = word.lower()
        for stem, join in _stems(lower):
            found = self._look_up(stem, last) or self._look_up(stem.capitalize(), last)
            if found is not None and len(stem) > 1:
                return join(found)
        if word.isupper() and len(word) <= 5:
            return self._spelled(word)
        if "'" in lower:
            return "".join(self.word(part) for part in lower.split("'") if part)
        return self._letters_to_sounds(lower)

    def _look_up(self, form: str, last: bool) -> str | None:
        entry = self._entries.get(form)
        if isinstance(entry, dict):
            return (entry.get(_LAST) if last else None) or entry.get("DEFAULT")
        return entry

    def _special(self, word: str, following: str) -> str | None:
        """Small words that sound differently before a vowel."""
        before_vowel = following.lstrip(_MARKS)[:1] in _VOWELS if following else None
        match word:
            case "a" | "A" if following:
                return "ɐ"
            case "an" | "An":
                return "ɐn"
            case "the" | "The":
                return "ði" if before_vowel else "ðə"
            case "to" | "To" if before_vowel is not None:
                return "tʊ" if before_vowel else "tə"
        return None

    def _spelled(self, word: str) -> str:
        letters = [self._look_up(letter, False) or self._letters_to_sounds(letter.lower()) for letter in word]
        # Of a spelled word the last letter is stressed.
        return "".join([*(letter.replace("ˈ", "ˌ") for letter in letters[:-1]), letters[-1]])


def _stems(word: str) -> Iterator[tuple[str, Callable[[str], str]]]:
    """What `word`, in lower case, may be a form of, and how the stem's phonemes become its own."""
    if word.endswith("'"):
        yield word[:-1], str
    if word.endswith("'s"):
        yield word[:-2], _with_s
    elif word.endswith("s") and not word.endswith("ss"):
        yield word[:-1], _with_s
        if word.endswith("es"):
            yield word[:-2], _with_s
        if word.endswith("ies"):
            yield word[:-3] + "y", _with_s
    elif word.endswith("ed"):
        for stem in (word[:-1], *_without(word[:-2])):
            yield stem, _with_ed
        if word.endswith("ied"):
            yield word[:-3] + "y", _with_ed
    elif word.endswith("ing"):
        for stem in (*_without(word[:-3]), word[:-3] + "e"):
            yield stem, _with_ing


def _without(stem: str) -> Iterator[str]:
    """The stem, and that with its last letter once where that was doubled."""
    yield stem
    if len(stem) > 2 and stem[-1] == stem[-2]:
        yield stem[:-1]


def _with_s(phonemes: str) -> str:
    if phonemes[-1] in "szʃʒʧʤ":
        return phonemes + "ᵻz"
    return phonemes + ("s" if phonemes[-1] in "ptkfθ" else "z")


def _with_ed(phonemes: str) -> str:
    if phonemes[-1] in "td":
        return phonemes + "ᵻd"
    return phonemes + ("t" if phonemes[-1] in "pkfθsʃʧ" else "d")


def _with_ing(phonemes: str) -> str:
    return phonemes + "ɪŋ"
