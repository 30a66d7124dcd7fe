"""How the commands' help is laid out."""

from __future__ import annotations

import argparse
import textwrap


class HelpFormatter(argparse.HelpFormatter):
    """Fills paragraphs to the terminal's width, and leaves indented lines, such as examples, as they are."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        lines: list[str] = []
        paragraph: list[str] = []
        for line in [*text.strip().splitlines(), ""]:
            if line and not line.startswith(" "):
                paragraph.append(line)
                continue
            lines += textwrap.wrap(" ".join(paragraph), width, break_long_words=False)
            lines.append(line)
            paragraph = []
        return "\n".join(indent + line for line in "\n".join(lines).strip("\n").splitlines())
