"""`omni chat`, as a user runs it."""

from __future__ import annotations

import base64
import fcntl
import json
import os
import pty
import re
import select
import shutil
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from omni_python.cli import main
from omni_python.commands.demonstration import PHOTO, QUESTION
from omni_python.commands.printing import without_controls
from omni_python.serve.triton_server import TritonServer
from tests.e2e import metrics

OMNI = str(Path(sys.executable).with_name("omni"))
LARGE = str(Path(np.__file__).parent.parent.joinpath("torch", "lib", "libtorch_python.so"))
"""A file of some megabytes."""


def chat(
    server: TritonServer, *args: str, stdin: str = "", folder: Path | None = None
) -> subprocess.CompletedProcess[str]:
    command = [OMNI, "chat", "--url", server.grpc_url, "--pipeline", "noop_forward", *args]
    return subprocess.run(command, input=stdin, cwd=folder, capture_output=True, text=True, timeout=60)


def test_prints_the_answer_and_its_figures(noop_server: TritonServer, tmp_path: Path) -> None:
    result = chat(noop_server, "Hi", "--sampling", '{"chunks": 2, "chunk_bytes": 3}', folder=tmp_path)
    assert (result.returncode, result.stdout) == (0, 'xxxxxx{"chunks":2}\n')
    assert result.stderr.startswith("first text ") and result.stderr.count("\n") == 1
    assert list(tmp_path.iterdir()) == [], "the pipeline did not speak"


def test_question_from_standard_input_or_media(noop_server: TritonServer) -> None:
    assert chat(noop_server, stdin="Hi\n").stdout == '{"chunks":0}\n'
    result = chat(noop_server, "--audio", str(QUESTION), "--image", str(PHOTO), "--system", "Be brief.")
    assert (result.returncode, result.stdout) == (0, '{"chunks":0}\n')


@pytest.mark.parametrize(
    ("args", "status", "message"),
    [
        (["x", "--sampling", "{"], 2, "--sampling: not valid JSON"),
        (["x", "--sampling", "[1]"], 2, "--sampling: must be a JSON object"),
        (["x", "--image", "none.jpg"], 2, "cannot read none.jpg: No such file"),
        (["x", "--out", "none/a.wav"], 2, "--out: there is no folder none"),
        (["x", "--out", "."], 2, "--out: . is a folder"),
        (["x", "--json", "--image", "none.jpg"], 2, "cannot read none.jpg: No such file"),
        (["x", "--shared-memory", "cuda", "--image", LARGE], 1, "needs"),
        ([], 2, "there is no question"),
        ([""], 2, "there is no question"),
        (["x", "--temperature", "0.5"], 1, "unknown field `temperature`"),
        (["x", "--sampling", '{"fail_stage": "a"}'], 1, "NoopFailure: stage a fails, as asked"),
        (["x", "--pipeline", "other"], 1, "ready at .*: noop_forward"),
        (["x", "--url", "127.0.0.1:9"], 1, "no Triton server answers at 127.0.0.1:9"),
        (["x", "--url", "http://127.0.0.1:9"], 1, "no Triton server answers at http://127.0.0.1:9"),
        (["x", "--url", "http://127.0.0.1:9", "--shared-memory", "system"], 2, "needs the server's gRPC service"),
    ],
)
def test_errors_are_one_line(
    noop_server: TritonServer, tmp_path: Path, args: list[str], status: int, message: str
) -> None:
    result = chat(noop_server, *args, folder=tmp_path)
    assert (result.returncode, result.stdout) == (status, "")
    assert result.stderr.startswith("omni chat: ") and result.stderr.count("\n") == 1
    assert re.search(message, result.stderr), result.stderr


@pytest.mark.parametrize(
    ("flag", "value", "message"),
    [
        ("--url", "localhost", "must be HOST:PORT, such as localhost:8001, not 'localhost'"),
        ("--temperature", "nan", "must be a number, not 'nan'"),
    ],
)
def test_values_that_cannot_be_are_refused(
    flag: str, value: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["chat", "Hi", flag, value])
    assert ended.value.code == 2
    assert f"argument {flag}: {message}\n" in capsys.readouterr().err


def test_a_trace_is_drawn_below_the_answer(noop_server: TritonServer) -> None:
    result = chat(noop_server, "Hi", "--trace")
    assert (result.returncode, result.stdout) == (0, '{"chunks":0}\n')
    assert "noop_forward" in result.stderr and re.search(r"^ ╰ from ", result.stderr, re.MULTILINE)
    answer = json.loads(chat(noop_server, "Hi", "--trace", "--json").stdout)
    shown = [OMNI, "trace", answer["trace_id"], "--json", "--url", noop_server.grpc_url, "--pipeline", "noop_forward"]
    again = subprocess.run(shown, capture_output=True, text=True, timeout=60, check=True)
    assert json.loads(again.stdout)["trace_id"] == answer["trace_id"]
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    shown.remove("--json")
    drawn = subprocess.run(shown, capture_output=True, text=True, timeout=60, check=True, env=environment).stdout
    assert " ` from " in drawn and "# computing" in drawn and "?" not in drawn


def test_json_is_one_object(noop_server: TritonServer) -> None:
    result = chat(noop_server, "--json", "--sampling", '{"chunks": 2, "chunk_bytes": 3}', stdin="Hi\n")
    assert (result.returncode, result.stderr, result.stdout.count("\n")) == (0, "", 1)
    answer = json.loads(result.stdout)
    timings = answer.pop("timings")
    assert answer == {
        "text": 'xxxxxx{"chunks":2}',
        "finish_reason": "stop",
        "usage": {"input_tokens": 0, "output_tokens": 0},
        "speech": None,
    }
    assert 0 < timings["first_text"] <= timings["total"] and timings["first_audio"] is None


def test_media_in_shared_memory(noop_server: TritonServer) -> None:
    result = chat(noop_server, "Hi", "--video", LARGE, "--shared-memory", "system")
    assert (result.returncode, result.stdout) == (0, '{"chunks":0}\n')


class Terminal:
    """A program on a terminal of its own, which shows no colours and tells nobody where its cursor is."""

    def __init__(self, home: Path, *command: str, columns: int = 80) -> None:
        self._unread = ""
        self._master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
        settings = {"NO_COLOR": "1", "TERM": "xterm", "PROMPT_TOOLKIT_NO_CPR": "1", "XDG_STATE_HOME": str(home)}
        self.process = subprocess.Popen(
            command,
            stdin=slave,
            stdout=slave,
            stderr=slave,
            cwd=home,
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
            env={**os.environ, **settings},
        )
        os.close(slave)

    def type(self, text: str) -> None:
        os.write(self._master, text.encode())

    def read_until(self, text: str, timeout: float = 60.0) -> str:
        """All output up to and with `text`, without what moves the cursor."""
        deadline = time.monotonic() + timeout
        while text not in self._unread:
            assert time.monotonic() < deadline, f"no {text!r} in {self._unread[-500:]!r}"
            if select.select([self._master], [], [], 0.1)[0]:
                shown = os.read(self._master, 1 << 16).decode(errors="replace")
                self._unread += re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", shown)
        before, _, self._unread = self._unread.partition(text)
        return before + text

    def ask(self, line: str, expected: str) -> str:
        """Enter a line; all output up to and with `expected`. Waits for the next prompt, too."""
        self.type(f"{line}\r")
        output = self.read_until(expected)
        self.read_until(">")
        return output

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        os.close(self._master)


@contextmanager
def conversation(server: TritonServer, home: Path, sampling: str, columns: int = 80) -> Iterator[Terminal]:
    """`omni chat` on a terminal, with its first prompt behind it; it has to end by itself."""
    command = [OMNI, "chat", "--url", server.grpc_url, "--pipeline", "noop_forward", "--sampling", sampling]
    terminal = Terminal(home, *command, columns=columns)
    try:
        assert "noop_forward listens. /help lists the commands" in terminal.read_until(">")
        yield terminal
        assert terminal.process.wait(20) == 0
    finally:
        terminal.close()


def test_conversation(noop_server: TritonServer, tmp_path: Path) -> None:
    shutil.copy(PHOTO, tmp_path / "my photo.jpg")
    with conversation(noop_server, tmp_path, '{"chunks": 2, "chunk_bytes": 2}') as terminal:
        for question in ("Hi", "And?"):
            assert 'xxxx{"chunks":2}' in terminal.ask(question, "first text ")
        terminal.ask("/imge photo.jpg", "/imge: no such command; there are /audio, /clear, /help")
        terminal.ask("/image none.jpg", "cannot read none.jpg: No such file")
        terminal.ask("/voice", "this pipeline does not speak")
        terminal.ask("/save a.wav", "there is no speech to save yet")
        terminal.ask("/image my photo.jpg", "[my photo.jpg]")
        terminal.ask("", "first text ")
        terminal.ask("/save said.json", "wrote said.json")
        terminal.type("/quit\r")
    said = json.loads((tmp_path / "said.json").read_text())
    assert [message["role"] for message in said] == ["user", "assistant"] * 3
    assert said[2]["content"] == [{"type": "text", "text": "And?"}]
    assert said[3]["content"] == 'xxxx{"chunks":2}'
    (picture,) = said[4]["content"]
    assert picture["image_url"]["url"] == "data:image/jpeg;base64," + base64.b64encode(PHOTO.read_bytes()).decode()
    history = tmp_path / "omni" / "chat_history"
    assert "+And?\n" in history.read_text() and history.stat().st_mode & 0o077 == 0


def test_interrupt_stops_the_answer_and_not_the_conversation(noop_server: TritonServer, tmp_path: Path) -> None:
    metrics.wait_empty(noop_server, "noop_forward")
    before = metrics.aborted(noop_server, "noop_forward")
    with conversation(noop_server, tmp_path, '{"chunks": 200000, "chunk_bytes": 2}') as terminal:
        terminal.type("Hi\r")
        terminal.read_until("xxxx")
        terminal.type("\x03")
        terminal.read_until("stopped")
        terminal.read_until(">")
        metrics.wait_left(noop_server, "noop_forward", before + 1)
        terminal.type("abc\x03")
        terminal.read_until("Ctrl-D or /quit leaves")
        terminal.read_until(">")
        terminal.ask("/save said.json", "wrote said.json")
        terminal.ask("/clear", "forgotten")
        terminal.ask("/save nothing.json", "wrote nothing.json")
        terminal.type("\x04")
    question, answer = json.loads((tmp_path / "said.json").read_text())
    assert question["content"] == [{"type": "text", "text": "Hi"}] and re.fullmatch("x+", answer["content"])
    assert json.loads((tmp_path / "nothing.json").read_text()) == []


def test_a_conversation_without_its_server_does_not_begin(tmp_path: Path) -> None:
    terminal = Terminal(tmp_path, OMNI, "chat", "--url", "127.0.0.1:9")
    try:
        terminal.read_until("omni chat: no Triton server answers at 127.0.0.1:9")
        assert terminal.process.wait(20) == 1
    finally:
        terminal.close()


def test_a_terminal_gets_no_control_characters() -> None:
    assert without_controls("a\x1b[31mb\x07\r\x9b2J\n\tü 中 😀") == "a\ufffd[31mb\ufffd\ufffd\ufffd2J\n\tü 中 😀"
