"""How the commands show an answer on a terminal."""

from __future__ import annotations

import os
import unicodedata
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from omni_python.client import Answer


def without_controls(text: str) -> str:
    """`text` without what a terminal would obey: control characters other than line ends and tabs become U+FFFD."""
    return "".join(c if c in "\n\t" or unicodedata.category(c) != "Cc" else "\N{REPLACEMENT CHARACTER}" for c in text)


_TO_ASCII = str.maketrans("┌┐└┘├┬─│▶◀…█▒▚╷╰╌", "++++++-|><~#:%|`.")


def to_ascii(text: str) -> str:
    """The same drawing for terminals without line-drawing characters."""
    return text.translate(_TO_ASCII)


def drawn(text: str, encoding: str) -> str:
    """A drawing in the characters that what writes in `encoding` can write."""
    try:
        text.encode(encoding)
    except UnicodeEncodeError:
        return to_ascii(text)
    return text


def figures(answer: Answer) -> dict[str, str]:
    """What the answer took, by label; without those of speech where there is none."""
    finished, factor = answer.finished, answer.real_time_factor
    took = {}
    if finished.first_text is not None:
        took["time to first text"] = f"{finished.first_text:.3f} s"
    if finished.first_audio is not None:
        took["time to first audio"] = f"{finished.first_audio:.3f} s"
    if factor is not None:
        took["real-time factor"] = f"{factor:.2f}"
        took["audio length"] = f"{answer.audio_seconds:.2f} s"
    return took


def dim(text: str, file: TextIO) -> str:
    """`text` in a faint colour where `file` is a terminal that shows colours."""
    return f"\x1b[2m{text}\x1b[0m" if file.isatty() and "NO_COLOR" not in os.environ else text
