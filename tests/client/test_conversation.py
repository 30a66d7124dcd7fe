"""What a terminal conversation sends, and how it wraps what comes."""

from __future__ import annotations

import io
import random
import re
import string
from pathlib import Path

import pytest
from prompt_toolkit.utils import get_cwidth

from omni_python.client import PipelineInfo
from omni_python.commands.answering import folded
from omni_python.commands.conversation import CommandError, Conversation
from omni_python.commands.wrapping import WrappedText

SPEAKING = PipelineInfo(modalities=("text", "audio"), voices=("anna", "ben"), default_voice="anna")


def test_earlier_turns_and_media_go_along(tmp_path: Path) -> None:
    (tmp_path / "a.wav").write_bytes(b"RIFF")
    talk = Conversation(SPEAKING, system="Be brief.")
    talk.command(f"/audio {tmp_path}/a.wav")
    first = talk.question("What?")
    assert first["content"] == [
        {"type": "input_audio", "input_audio": {"data": "UklGRg=="}},
        {"type": "text", "text": "What?"},
    ]
    talk.detach()
    talk.answered(first, "A sound.")
    assert talk.asking(talk.question("Sure?")) == [
        {"role": "system", "content": "Be brief."},
        first,
        {"role": "assistant", "content": "A sound."},
        {"role": "user", "content": [{"type": "text", "text": "Sure?"}]},
    ]
    talk.command("/clear")
    assert [message["role"] for message in talk.asking(talk.question("Hi"))] == ["system", "user"]


def test_voices() -> None:
    talk = Conversation(SPEAKING)
    assert talk.command("/voice") == "voice: anna (of anna, ben)"
    assert talk.command("/voice ben") == "voice: ben (of anna, ben)" and talk.voice == "ben"
    with pytest.raises(CommandError, match="no voice eve; there are anna, ben, or off"):
        talk.command("/voice eve")
    talk.command("/voice off")
    assert not talk.speaks and talk.command("/voice") == "voice: off (of anna, ben)"
    talk.command("/voice anna")
    assert talk.speaks


@pytest.mark.parametrize("line", ["/save", "/save a.txt", "/save a.wav b.wav", "/image", '/image "a', "/", "/quitt"])
def test_wrong_commands_say_what_is_right(line: str) -> None:
    with pytest.raises(CommandError, match="give one file|which file|quotation mark is open|no such command; there"):
        Conversation(SPEAKING).command(line)


class Screen(io.StringIO):
    """A terminal's lines, as far as `WrappedText` writes to it."""

    def __init__(self) -> None:
        super().__init__()
        self.lines = [""]

    def isatty(self) -> bool:
        return True

    def write(self, text: str) -> int:
        for piece in re.findall(r"\x1b\[\d*[A-Za-z]|[^\x1b]", text):
            if piece == "\n":
                self.lines.append("")
            elif piece.endswith("D") and len(piece) > 1:
                self.lines[-1] = self.lines[-1][: len(self.lines[-1]) - int(piece[2:-1])]
            elif not piece.startswith("\x1b"):
                self.lines[-1] += piece
        return len(text)


@pytest.mark.parametrize("columns", [10, 23, 80])
def test_text_in_pieces_wraps_between_words(columns: int) -> None:
    words = ["".join(random.choices(string.ascii_letters, k=random.randint(1, 8))) for _ in range(300)]
    text = " ".join(words)
    screen = Screen()
    wrapped = WrappedText(screen, lambda: columns)
    while text:
        cut = random.randint(1, 6)
        wrapped.write(text[:cut])
        text = text[cut:]
    wrapped.end()
    assert max(map(len, screen.lines)) < columns
    assert [word for line in screen.lines for word in line.split()] == words
    for line, following in zip(screen.lines, screen.lines[1:], strict=False):
        if following:
            assert len(line.rstrip()) + 1 + len(following.split()[0]) > columns - 1, "it would have fitted"


def test_wide_characters_and_long_words_break_at_the_border() -> None:
    screen = Screen()
    wrapped = WrappedText(screen, lambda: 11)
    wrapped.write("中文" * 6 + "\nx" + "y" * 24)
    assert [sum(map(get_cwidth, line)) for line in screen.lines] == [10, 10, 4, 10, 10, 5]


def test_the_status_line_goes_when_text_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = io.StringIO()
    wrapped = WrappedText(screen, lambda: 20)
    wrapped.write("Hi")
    wrapped.show_status("a status that is too long for it")
    wrapped.show_status("short")
    wrapped.write("!")
    assert screen.getvalue() == "Hi\na status that is to\r\x1b[Kshort\r\x1b[K\x1b[1A\x1b[2C!"


def test_timings_fold_between_items() -> None:
    assert folded(["first text 0.1 s", "speech 3 s", "in a.wav"], 28) == "first text 0.1 s  speech 3 s\nin a.wav"
