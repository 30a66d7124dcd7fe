"""The stage that cuts the answer, as it is written, into pieces that the talker speaks one after the other."""

from __future__ import annotations

import re
from dataclasses import dataclass

from omni_python.models.ming_omni.payloads import Piece, PiecesResult, PiecesStart, SpokenStart
from omni_python.models.text.answers import AnswerScheduler
from omni_python.models.text.detokenizer import TokenBytes
from omni_python.models.text.payloads import DecodeStart, ThinkerResult
from omni_python.proto.errors import OmniError
from omni_python.proto.work import OutgoingMessage

FIRST_LENGTH, NEXT_LENGTH = 12, 8
"""So many words, spaces and marks come before the one that ends a piece, and in the first piece more, as in the
published talker; the last piece may be shorter."""
MOST_WORDS, MOST_CHARACTERS = 50, 300
"""The former is the published talker's; the latter bounds what words can be."""

_LETTERS = r"[^\W\d_\u4e00-\u9fff]+"
_PART = re.compile(rf"(?:[a-zA-Z]\.)+|[\u4e00-\u9fff]|{_LETTERS}(?:['\-]{_LETTERS})*|\d+(?:\.\d+)?|\s+|\S")
"""Words, spaces and marks; each Chinese character is a word."""
_ENDS = frozenset("！？。，!?")  # noqa: RUF001, the talker's own list
_CLAUSES = frozenset(",;:；、")  # noqa: RUF001
_UNSETTLED = 2
"""What follows may still join the last two parts: 3 . 5, or it ' s."""


class TextSplitter:
    """Cuts a text that comes in deltas. Where it is cut depends on the text alone, not on the deltas or on time."""

    def __init__(self) -> None:
        self._text = ""
        self._pieces = 0

    def push(self, delta: str) -> list[str]:
        """The pieces that are certain now."""
        self._text += delta
        return self._cut(_UNSETTLED)

    def finish(self) -> list[str]:
        """What is left."""
        pieces = self._cut(0)
        rest, self._text = _spoken(self._text), ""
        return [*pieces, rest] if rest else pieces

    def _cut(self, unsettled: int) -> list[str]:
        pieces = []
        while (end := self._end(unsettled)) is not None:
            piece, self._text = _spoken(self._text[:end]), self._text[end:]
            if piece:
                pieces.append(piece)
                self._pieces += 1
        return pieces

    def _end(self, unsettled: int) -> int | None:
        """Where the next piece ends; None where that cannot be told yet."""
        parts = [match.span() for match in _PART.finditer(self._text)]
        fewest = NEXT_LENGTH if self._pieces else FIRST_LENGTH
        words, soft, before = 0, 0, ""
        if parts and parts[-1][1] - parts[-1][0] > MOST_CHARACTERS:
            unsettled = 0  # whatever follows, it is cut; so what is held back has a bound
        for count, (start, end) in enumerate(parts[: len(parts) - unsettled]):
            part = self._text[start:end]
            if end > MOST_CHARACTERS:
                return soft or MOST_CHARACTERS
            ends = part in _ENDS or (part == "." and not before[-1:].isdigit()) or (part.isspace() and "\n" in part)
            if ends and count >= fewest:
                return end
            words += part[0].isalnum()
            if words >= MOST_WORDS:
                return soft or end
            if part in _CLAUSES:
                soft = end
            before = part
        return None


def _spoken(text: str) -> str:
    """A piece as it is given to the talker; "" where there is nothing to say."""
    joined = " ".join(text.split())
    return joined if any(character.isalnum() for character in joined) else ""


@dataclass
class _Speech:
    splitter: TextSplitter
    pieces: int = 0


class SegmenterScheduler(AnswerScheduler[_Speech]):
    """The answer's tokens in, `Piece` out to `target`."""

    def __init__(self, token_bytes: TokenBytes, target: str) -> None:
        super().__init__(token_bytes, "segmenter")
        self._target = target

    def begin(self, request_id: str, start: DecodeStart) -> _Speech:
        if not isinstance(start, SpokenStart):
            raise OmniError("the segmenter is told how to speak by a SpokenStart")
        told = PiecesStart(start.voice, start.talker, start.stream)
        self.outbox.put(OutgoingMessage(request_id, "stream", told, self._target))
        return _Speech(TextSplitter())

    def extend(self, request_id: str, state: _Speech, text: str) -> None:
        self._give(request_id, state, state.splitter.push(text))

    def finish(self, request_id: str, state: _Speech, end: ThinkerResult) -> None:
        self._give(request_id, state, state.splitter.finish())
        self.outbox.put(OutgoingMessage(request_id, "result", PiecesResult(state.pieces)))

    def _give(self, request_id: str, state: _Speech, pieces: list[str]) -> None:
        for piece in pieces:
            state.pieces += 1
            self.outbox.put(OutgoingMessage(request_id, "stream", Piece(piece), self._target))
