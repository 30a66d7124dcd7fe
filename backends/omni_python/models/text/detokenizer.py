"""Tokens to text one by one, never half a character; and stop strings in it."""

from __future__ import annotations

import codecs
from collections.abc import Sequence

import tokenizers  # type: ignore[import-untyped]


class TokenBytes:
    """The bytes that each token stands for; none for special tokens and for ids that the tokenizer does not have."""

    def __init__(self, tokenizer: tokenizers.Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._added = tokenizer.get_added_tokens_decoder()

    def __getitem__(self, token_id: int) -> bytes:
        added = self._added.get(token_id)
        if added is not None:
            return b"" if added.special else added.content.encode()
        token = self._tokenizer.id_to_token(token_id)
        if token is None:
            return b""
        try:
            return bytes(_BYTE_OF[character] for character in token)
        except KeyError:
            return token.encode()


class Detokenizer:
    """Text of one answer. What it has given, joined, is the decoding of all its tokens at once."""

    def __init__(self, token_bytes: TokenBytes) -> None:
        self._bytes = token_bytes
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token_id: int) -> str:
        """The text that is certain now; bytes of a character that is not complete yet are held back."""
        return self._decoder.decode(self._bytes[token_id])

    def finish(self) -> str:
        """What was held back; an incomplete character becomes U+FFFD."""
        return self._decoder.decode(b"", final=True)


class StopStrings:
    """Cuts a text that comes in pieces at the first of `stops`."""

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = [stop for stop in stops if stop]
        self._held = ""
        self.stopped = False

    def push(self, text: str) -> str:
        """The part of the text so far that is certainly before a stop string and was not given yet."""
        if self.stopped:
            return ""
        text = self._held + text
        found = [at for stop in self._stops if (at := text.find(stop)) >= 0]
        if found:
            self.stopped, self._held = True, ""
            return text[: min(found)]
        keep = len(text) - self._possible_start(text)
        self._held = text[keep:]
        return text[:keep]

    def finish(self) -> str:
        """What was held back, in case a stop string would follow."""
        held, self._held = self._held, ""
        return held

    def _possible_start(self, text: str) -> int:
        """The length of the longest end of `text` that begins a stop string."""
        for length in range(min(len(text), max(map(len, self._stops), default=1) - 1), 0, -1):
            if any(stop.startswith(text[-length:]) for stop in self._stops):
                return length
        return 0


def _byte_alphabet() -> dict[str, int]:
    """Byte-level BPE writes each byte as a character (GPT-2): printable ones as themselves, others from U+0100 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(0x100) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(0x100 + n): byte for n, byte in enumerate(others)}


_BYTE_OF = _byte_alphabet()
