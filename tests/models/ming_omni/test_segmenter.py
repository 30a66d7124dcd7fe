"""Where an answer is cut into pieces, and that it does not matter how it comes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from omni_python.models.ming_omni.segmenter import MOST_CHARACTERS, TextSplitter

SENTENCE = "The sea is wide and deep, and nobody has seen all of it."


def cut(*deltas: str) -> list[str]:
    splitter = TextSplitter()
    found = [piece for delta in deltas for piece in splitter.push(delta)]
    return [*found, *splitter.finish()]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Hi.", ["Hi."]),
        ("One. Two! Three?", ["One. Two! Three?"]),  # too short to be cut
        (f"{SENTENCE} {SENTENCE} Yes.", [SENTENCE, SENTENCE, "Yes."]),
        (
            "It costs 3.50 euros in 12 of the shops. Not in all. No.",
            ["It costs 3.50 euros in 12 of the shops.", "Not in all. No."],
        ),
        (
            "What I would buy there is no. 7. And so would you.",
            ["What I would buy there is no.", "7. And so would you."],
        ),
        ("今天天气很好，我们去公园散步。你去吗？", ["今天天气很好，我们去公园散步。", "你去吗？"]),  # noqa: RUF001
        (
            "a line that has some more words\nand one more",
            ["a line that has some more words", "and one more"],
        ),
        ("  \n ... !? ", []),
        ("", []),
    ],
)
def test_pieces(text: str, expected: list[str]) -> None:
    assert cut(text) == expected


def test_long_sentences_are_cut_at_clauses_else_at_words() -> None:
    words = " ".join(["word"] * 30)
    assert cut(f"{words}, {words}") == [f"{words},", words]
    assert cut(" ".join(["word"] * 60)) == [" ".join(["word"] * 50), " ".join(["word"] * 10)]
    assert [len(piece) for piece in cut("x" * 700)] == [MOST_CHARACTERS, MOST_CHARACTERS, 100]
    assert TextSplitter().push("x" * 700) == ["x" * MOST_CHARACTERS] * 2


@pytest.mark.parametrize("text", ["x" * 700, "7" * 301 + ".5" * 200, "it's so; " + "word " * 10 + "y" * 650 + ". End."])
def test_long_words_are_cut_alike_however_they_come(text: str) -> None:
    assert cut(text) == cut(*text)


@given(st.lists(st.text("ab1 .,!?'-\n你。é", max_size=12), max_size=40))
def test_the_deltas_do_not_matter(deltas: list[str]) -> None:
    text = "".join(deltas)
    found = cut(*deltas)
    assert found == cut(text) == cut(*text)
    kept = "".join("".join(found).split())
    assert [c for c in text if c.isalnum()] == [c for c in kept if c.isalnum()]
    assert all(len(piece) <= MOST_CHARACTERS for piece in found)


def test_what_is_certain_comes_at_once() -> None:
    splitter = TextSplitter()
    assert splitter.push(SENTENCE) == []  # a digit might follow the point
    assert splitter.push(" ") == []
    assert splitter.push("And") == [SENTENCE]
