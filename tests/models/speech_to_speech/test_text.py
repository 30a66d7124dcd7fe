# ruff: noqa: RUF001  (phonemes and typographic signs)
"""Text to sentences, words and phonemes."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from omni_python.models.loading.checkpoint import CheckpointError
from omni_python.models.speech_to_speech.letters_to_sounds import _SOUNDS, LettersToSounds, from_arpabet
from omni_python.models.speech_to_speech.pronunciation import Pronunciation
from omni_python.models.speech_to_speech.sentences import SentenceSplitter
from omni_python.models.speech_to_speech.spoken_text import spell_out


def sentences(pieces: list[str], **sizes: int) -> list[str]:
    splitter = SentenceSplitter(**sizes)
    return [sentence for piece in pieces for sentence in splitter.push(piece)] + splitter.finish()


def test_sentences_end_where_they_end() -> None:
    text = "Mr. J. Smith paid 3.50 for it! Was it “enough”? He said so. Yes"
    assert sentences([text]) == ["Mr. J. Smith paid 3.50 for it!", "Was it “enough”?", "He said so.", "Yes"]


def test_the_first_clause_does_not_wait_for_its_sentence() -> None:
    text = "When the rain had stopped at last, we went on, up the hill, until the evening. Then, after a rest, home."
    first, *rest = sentences([text])
    assert first == "When the rain had stopped at last,"
    assert rest == ["we went on, up the hill, until the evening.", "Then, after a rest, home."]
    splitter = SentenceSplitter()
    assert splitter.push(text[:60]) == ["When the rain had stopped at last,"], "before the sentence is over"


def test_without_a_clause_a_phrase_is_enough() -> None:
    text = "The old man walked along the river and then he sat down with a book under a tree."
    assert sentences([text]) == ["The old man walked along the river", "and then he sat down with a book under a tree."]
    assert sentences(["The old man sat down with a book."]) == ["The old man sat down with a book."]
    assert sentences(["The brown fox jumps over the lazy dog."]) == ["The brown fox jumps", "over the lazy dog."]


def test_a_long_first_clause_is_begun_with_a_phrase() -> None:
    text = "The old man and his two friends from the small town walked, slowly, along the river."
    first, *rest = sentences([text])
    assert first == "The old man and his two friends"
    assert rest == ["from the small town walked, slowly, along the river."]


def test_numbers_are_longer_where_they_are_spoken() -> None:
    assert sentences(["1, 2, 3, 4, 5, 6."]) == ["1, 2, 3,", "4, 5, 6."]
    assert sentences(["1-2-3-4-5-6."]) == ["1-2-3-", "4-5-6."]


def test_long_sentences_are_cut() -> None:
    words = " ".join(f"word{n}," if n % 7 == 0 else f"word{n}" for n in range(200))
    cut = sentences([words, "x" * 500], longest=100)
    assert all(len(sentence) <= 100 for sentence in cut)
    assert "".join(cut).replace(" ", "") == (words + "x" * 500).replace(" ", "")


@given(st.text(alphabet="ab.,!? \n'1", max_size=120), st.lists(st.integers(1, 9), min_size=1, max_size=9))
def test_nothing_is_lost_and_nothing_repeated(text: str, sizes: list[int]) -> None:
    pieces: list[str] = []
    at = 0
    while at < len(text):
        size = sizes[len(pieces) % len(sizes)]
        pieces.append(text[at : at + size])
        at += size
    cut = sentences(pieces, first_clause=5, longest=30)
    assert "".join("".join(cut).split()) == "".join(text.split())
    assert all(sentence == sentence.strip() and 0 < len(sentence) <= 30 for sentence in cut)


@pytest.mark.parametrize(
    ("written", "spoken"),
    [
        ("1-2-3, 4, 5.", "one, two, three, four, five."),
        ("In 1999, 2005 and 2024", "In nineteen ninety nine, two thousand five and twenty twenty four"),
        ("1,234 of 3.14", "one thousand two hundred thirty four of three point one four"),
        ("$5.50, £1 and €2 million", "five dollars and fifty cents, one pound and two million euros"),
        ("at 10:05 or 7:00", "at ten oh five or seven o'clock"),
        ("the 21st of the 1990s", "the twenty first of the nineteen nineties"),
        ("-5° (20%)", "minus five degrees (twenty percent)"),
        ("1234567890", "one two three four five six seven eight nine zero"),
        ("Dr. Café & Mrs. O’Neill", "doctor Cafe and missus O'Neill"),
        ("No. 7? No. I do not.", "number seven? No. I do not."),
        ("MP3", "MP three"),
        ("", ""),
    ],
)
def test_numbers_and_signs_are_spelled_out(written: str, spoken: str) -> None:
    assert spell_out(written) == spoken


@given(st.text(max_size=60))
def test_any_text_can_be_spelled_out(text: str) -> None:
    assert not any(character.isascii() and character.isdigit() for character in spell_out(text))


@pytest.fixture
def pronounce(tmp_path: Path) -> Pronunciation:
    gold: dict[str, object] = {
        "cat": "kˈæt",
        "bus": "bˈʌs",
        "hope": "hˈOp",
        "stop": "stˈɑp",
        "need": "nˈid",
        "apple": "ˈæpᵊl",
        "go": "ɡˈO",
        "can": {"DEFAULT": "kæn", "None": "kˈæn"},
        "U": "jˈu",
        "S": "ˈɛs",
        "Paris": "pˈɛɹəs",
    }
    silver = {"cat": "wrong", "rare": "ɹˈɛɹ"}
    for name, entries in (("gold", gold), ("silver", silver)):
        (tmp_path / name).write_text(json.dumps(entries), "utf-8")
    return Pronunciation([tmp_path / "gold", tmp_path / "silver"], lambda word: f"<{word}>")


@pytest.mark.parametrize(
    ("text", "phonemes"),
    [
        ("Cat, rare!", "kˈæt, ɹˈɛɹ!"),
        ("cats buses hoped stopped needed hoping stopping", "kˈæts bˈʌsᵻz hˈOpt stˈɑpt nˈidᵻd hˈOpɪŋ stˈɑpɪŋ"),
        ("the cat, the apple", "ðə kˈæt, ði ˈæpᵊl"),
        ("to go to apple", "tə ɡˈO tʊ ˈæpᵊl"),
        ("can go. can", "kæn ɡˈO. kˈæn"),
        ("the US", "ðə jˌuˈɛs"),
        ("paris cat's zyx", "pˈɛɹəs kˈæts <zyx>"),
        ("(cat) “go”", "(kˈæt) “ɡˈO”"),
    ],
)
def test_words_become_phonemes(pronounce: Pronunciation, text: str, phonemes: str) -> None:
    assert pronounce(text) == phonemes


def test_a_missing_dictionary_is_named(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"cannot read the dictionary .*/nothing"):
        Pronunciation([tmp_path / "nothing"], str)


def test_letters_become_sounds_as_the_equations_say(tmp_path: Path) -> None:
    """A GRU written out (Cho et al. 2014, with the reset gate after the product), with random weights."""
    random = np.random.default_rng(11)
    size = 12
    weights = {
        f"{side}_{name}": random.standard_normal(shape).astype(np.float32)
        for side, symbols in (("enc", 29), ("dec", 74))
        for name, shape in {
            "emb": (symbols, size),
            "w_ih": (3 * size, size),
            "w_hh": (3 * size, size),
            "b_ih": (3 * size,),
            "b_hh": (3 * size,),
        }.items()
    }
    weights |= {
        "fc_w": random.standard_normal((74, size)).astype(np.float32),
        "fc_b": random.standard_normal(74).astype(np.float32),
    }
    np.savez(tmp_path / "net.npz", **weights)

    def step(side: str, symbol: int, state: np.ndarray) -> np.ndarray:
        given = weights[f"{side}_w_ih"] @ weights[f"{side}_emb"][symbol] + weights[f"{side}_b_ih"]
        kept = weights[f"{side}_w_hh"] @ state + weights[f"{side}_b_hh"]
        (r1, z1, n1), (r2, z2, n2) = np.split(given, 3), np.split(kept, 3)
        reset, update = 1 / (1 + np.exp(-r1 - r2)), 1 / (1 + np.exp(-z1 - z2))
        made: np.ndarray = (1 - update) * np.tanh(n1 + reset * n2) + update * state
        return made

    state = np.zeros(size)
    for letter in "fjord":
        state = step("enc", 3 + ord(letter) - ord("a"), state)
    state = step("enc", 2, state)
    sounds: list[int] = []
    symbol = 2
    while len(sounds) < 20:
        state = step("dec", symbol, state)
        symbol = int((weights["fc_w"] @ state + weights["fc_b"]).argmax())
        if symbol == 3:
            break
        sounds.append(symbol)
    expected = "".join(from_arpabet(_SOUNDS[sound]) for sound in sounds)
    assert expected and LettersToSounds(tmp_path / "net.npz")("fjord") == expected
    assert "".join(map(from_arpabet, ["HH", "AH0", "L", "OW1", "ER2", "<s>"])) == "həlˈOˌɜɹ"


def test_another_network_is_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "other.npz", weights=np.zeros(3))
    with pytest.raises(CheckpointError, match="cannot read the letters' network"):
        LettersToSounds(tmp_path / "other.npz")
