"""How much a client's JSON would become, told before it is parsed: three bytes of it can make a Python object."""

from __future__ import annotations

import numpy as np

MAX_JSON_BYTES = 256 << 20
"""Of one JSON text."""

MAX_JSON_VALUES = 100_000
"""Elements of lists and objects in one JSON text: more than any request has that keeps to the other limits, and few
enough to be parsed in a tenth of a second."""

_CHUNK = 1 << 18
"""Bytes that are looked at in one step: as many as stay in a core's cache."""
_MARKS = b",[{"
"""One of them stands before every element."""
_QUOTE = ord('"')


def has_too_many_values(text: bytes) -> bool:
    """Whether a JSON text has more than `MAX_JSON_VALUES`; of one that is not valid, whether it has before the place
    where that shows. Takes little memory, and looks no further than it must."""
    if _few_marks(text):
        return False
    found, inside, cut = 0, 0, b""  # a string, and an escape sequence, may go on from chunk to chunk
    for start in range(0, len(text), _CHUNK):
        chunk = cut + text[start : start + _CHUNK]
        whole = chunk.rstrip(b"\\")
        cut = b"\\" * ((len(chunk) - len(whole)) % 2)
        plain = np.frombuffer(whole.replace(rb"\\", b"").replace(rb"\"", b""), np.uint8)
        quotes = plain == _QUOTE  # none of them is escaped any more: each begins or ends a string
        outside = (np.cumsum(quotes, dtype=np.uint8) + np.uint8(inside)) % 2 == 0
        found += _marks(plain[outside])
        if found > MAX_JSON_VALUES:
            return True
        inside = (inside + np.count_nonzero(quotes)) % 2
    return False


def _few_marks(text: bytes) -> bool:
    """Whether there are so few that it does not matter which lie in strings: what most large texts are, base64."""
    found = 0
    for start in range(0, len(text), _CHUNK):
        found += _marks(np.frombuffer(text[start : start + _CHUNK], np.uint8))
        if found > MAX_JSON_VALUES:
            return False
    return True


def _marks(text: np.ndarray) -> int:
    return sum(int(np.count_nonzero(text == mark)) for mark in _MARKS)
