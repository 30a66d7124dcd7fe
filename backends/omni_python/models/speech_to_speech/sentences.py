# ruff: noqa: RUF001  (phonemes and typographic signs)
"""Text that comes in pieces to what is spoken in one breath."""

from __future__ import annotations

import re

_END = re.compile(r"[.!?…]+[\"'”’)\]]*(?=\s)|\n")
_CLAUSE = re.compile(r"[,;:—–][\"'”’)\]]*(?=\s)|(?<=\d)-(?=\d+-)")
"""A number in a row like 1-2-3, too."""
_PHRASE = re.compile(
    r"\s(?=(?:and|but|or|because|which|who|that|when|where|while|if|as|until|since|after|before|with|without|for|from|into|"
    r"than|to|in|on|at|by|over|under|through|about|between|is|are|was|were|has|have|had|can|could|will|would)\s)"
)
"""Where a speaker may breathe within a clause."""
_LONG_CLAUSES = 3
"""Times the shortest first clause: what is longer is rather begun with a phrase."""
_DIGIT = 5
"""Letters of a digit that is spoken."""
_ABBREVIATION = re.compile(r"(?:^|[\s(])(?:[A-HJ-Z]|Mr|Mrs|Ms|Dr|Prof|St|Jr|Sr|vs|etc|e\.g|i\.e|No)\.$")
"""A point after these seldom ends a sentence."""


class SentenceSplitter:
    """Sentences, and of long ones clauses, as soon as they are there.

    `first_clause` characters are enough to speak the first clause, or phrase, before its sentence is complete, if as
    many follow, so that speech begins early; later ones are cut at clauses only where they would have more than
    `longest`. Joined, what is given is the whole text but for spaces.
    """

    def __init__(self, first_clause: int = 15, longest: int = 200) -> None:
        self._text = ""
        self._first_clause = first_clause
        self._longest = longest
        self._begun = False

    def push(self, text: str) -> list[str]:
        """What is complete now."""
        self._text += text
        sentences = []
        while (end := self._next_end()) is not None:
            sentences += self._take(end)
        return sentences

    def finish(self) -> list[str]:
        """The rest, when the text is over."""
        sentences = self.push("\n")
        self._text = ""
        return sentences

    def _take(self, end: int) -> list[str]:
        taken, self._text = self._text[:end].strip(), self._text[end:]
        self._begun |= bool(taken)
        return [taken] if taken else []

    def _next_end(self) -> int | None:
        """Where what is to be spoken next ends, if that is known."""
        end = next(
            (m.end() for m in _END.finditer(self._text) if not _ABBREVIATION.search(self._text[: m.end()])), None
        )
        within = self._text if end is None else self._text[:end]
        clauses = [match.end() for match in _CLAUSE.finditer(within)]
        if not self._begun and (early := self._first_end(within, clauses)) is not None:
            return early
        if len(within) <= self._longest:
            return end
        if fitting := [clause for clause in clauses if clause <= self._longest]:
            return fitting[-1]
        space = within.rfind(" ", 0, self._longest)
        return space if space > 0 else self._longest

    def _first_end(self, within: str, clauses: list[int]) -> int | None:
        """Where the first piece ends within its sentence: with a clause, or with a phrase where that is much sooner."""
        phrases = [match.end() for match in _PHRASE.finditer(within)]
        cuts = [
            [at for at in ends if min(_letters(within[:at]), _letters(within[at:])) >= self._first_clause]
            for ends in (clauses, phrases)
        ]
        clause, phrase = (ends[0] if ends else None for ends in cuts)
        if clause is None or (phrase is not None and clause > _LONG_CLAUSES * self._first_clause):
            return phrase
        return clause


def _letters(text: str) -> int:
    """About how many characters `text` has where numbers are spelled out."""
    return len(text) + (_DIGIT - 1) * sum(character.isdigit() for character in text)
