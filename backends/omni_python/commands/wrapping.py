"""Streamed text on a terminal: broken between words, with a line below it that tells how the answer comes along."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from typing import TextIO

from omni_python.commands.printing import dim, without_controls


def can_move_cursor(file: TextIO) -> bool:
    """Whether `file` is a terminal that understands more than text."""
    return file.isatty() and os.environ.get("TERM", "dumb") != "dumb"


def terminal_columns() -> int:
    """The width of the terminal now; 80 where nobody knows."""
    return shutil.get_terminal_size().columns


class WrappedText:
    """Text that comes in pieces. A piece is shown at once; a word that then meets the border moves to the next line."""

    def __init__(self, out: TextIO, columns: Callable[[], int] = terminal_columns) -> None:
        self._out = out
        self._columns = columns
        self._column = 0
        self._word = ""
        self._word_columns = 0
        self._status = False

    def write(self, text: str) -> None:
        """Show the next piece, without what a terminal would obey."""
        self.hide_status()
        # One column stays free: in the last one, terminals differ in where the cursor is.
        width = max(2, self._columns() - 1)
        self._out.write("".join(self._placed(character, width) for character in without_controls(text)))
        self._out.flush()

    def show_status(self, text: str) -> None:
        """Show or replace the line below the text, cut to the terminal's width."""
        line = dim(text[: max(2, self._columns() - 1)], self._out)
        self._out.write(("\r\x1b[K" if self._status else "\n") + line)
        self._out.flush()
        self._status = True

    def hide_status(self) -> None:
        """Take the line away, and go back to where the text ends."""
        if self._status:
            forward = f"\x1b[{self._column}C" if self._column else ""
            self._out.write(f"\r\x1b[K\x1b[1A{forward}")
            self._status = False

    def end(self) -> None:
        """After the last piece: the next output begins a line."""
        self.hide_status()
        self._out.write("\n" if self._column else "")
        self._out.flush()
        self._column, self._word, self._word_columns = 0, "", 0

    def _placed(self, character: str, width: int) -> str:
        """What shows `character` behind what is there."""
        from prompt_toolkit.utils import get_cwidth

        if character == "\n":
            self._column, self._word, self._word_columns = 0, "", 0
            return character
        if character == "\t":
            character = " "
        columns = get_cwidth(character)
        moved = ""
        if self._column + columns > width:
            if character == " ":  # the line's end stands for it
                self._word, self._word_columns = "", 0
                return ""
            # A word as long as the line stays where it is, broken.
            keep = self._word if self._word_columns < min(self._column, width - columns) else ""
            moved = f"\x1b[{self._word_columns}D\x1b[K\n{keep}" if keep else "\n"
            self._column = self._word_columns if keep else 0
        self._column += columns
        if character == " " or columns > 1:  # Chinese and Japanese may break anywhere
            self._word, self._word_columns = "", 0
        else:
            self._word += character
            self._word_columns += columns
        return moved + character
