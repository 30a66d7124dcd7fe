"""`omni chat`, as a user runs it."""

from __future__ import annotations

import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from omni_python.commands.demonstration import PHOTO, QUESTION
from omni_python.commands.printing import without_controls
from omni_python.serve.triton_server import TritonServer
from tests.e2e import metrics

OMNI = str(Path(sys.executable).with_name("omni"))


def chat(
    server: TritonServer, *args: str, stdin: str = "", folder: Path | None = None
) -> subprocess.CompletedProcess[str]:
    command = [OMNI, "chat", "--url", server.grpc_url, "--pipeline", "noop_forward", *args]
    return subprocess.run(command, input=stdin, cwd=folder, capture_output=True, text=True, timeout=60)


def test_prints_the_answer_and_its_figures(noop_server: TritonServer, tmp_path: Path) -> None:
    result = chat(noop_server, "Hi", "--sampling", '{"chunks": 2, "chunk_bytes": 3}', folder=tmp_path)
    assert (result.returncode, result.stdout) == (0, 'xxxxxx{"chunks":2}\n')
    assert result.stderr.startswith("time to first text: 0.") and result.stderr.count("\n") == 1
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
        ([], 2, "there is no question"),
        ([""], 2, "there is no question"),
        (["x", "--temperature", "0.5"], 1, "unknown field `temperature`"),
        (["x", "--sampling", '{"fail_stage": "a"}'], 1, "NoopFailure: stage a fails, as asked"),
        (["x", "--pipeline", "other"], 1, "ready at .*: noop_forward"),
        (["x", "--url", "127.0.0.1:9"], 1, "no Triton server answers at 127.0.0.1:9"),
    ],
)
def test_errors_are_one_line(
    noop_server: TritonServer, tmp_path: Path, args: list[str], status: int, message: str
) -> None:
    result = chat(noop_server, *args, folder=tmp_path)
    assert (result.returncode, result.stdout) == (status, "")
    assert result.stderr.startswith("omni chat: ") and result.stderr.count("\n") == 1
    assert re.search(message, result.stderr), result.stderr


class Terminal:
    """A program on a terminal of its own."""

    def __init__(self, *command: str) -> None:
        self._unread = ""
        self._master, slave = pty.openpty()
        self.process = subprocess.Popen(
            command,
            stdin=slave,
            stdout=slave,
            stderr=slave,
            start_new_session=True,
            env={**os.environ, "NO_COLOR": "1"},
        )
        os.close(slave)

    def type(self, text: str) -> None:
        os.write(self._master, text.encode())

    def read_until(self, text: str, timeout: float = 20.0) -> str:
        """All output up to and with `text`."""
        deadline = time.monotonic() + timeout
        while text not in self._unread:
            assert time.monotonic() < deadline, f"no {text!r} in {self._unread[-500:]!r}"
            if select.select([self._master], [], [], 0.1)[0]:
                self._unread += os.read(self._master, 1 << 16).decode()
        before, _, self._unread = self._unread.partition(text)
        return before + text

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        os.close(self._master)


def converse(server: TritonServer, sampling: str) -> Terminal:
    command = [OMNI, "chat", "--url", server.grpc_url, "--pipeline", "noop_forward", "--sampling", sampling]
    return Terminal(*command)


def test_conversation(noop_server: TritonServer) -> None:
    terminal = converse(noop_server, '{"chunks": 2, "chunk_bytes": 2}')
    try:
        terminal.read_until("> ")
        for _ in range(2):
            terminal.type("Hi\n")
            assert 'xxxx{"chunks":2}' in terminal.read_until("time to first text")
            terminal.read_until("> ")
        terminal.type("\x04")
        assert terminal.process.wait(10) == 0
    finally:
        terminal.close()


def test_interrupt_cancels_the_answer_and_not_the_conversation(noop_server: TritonServer) -> None:
    metrics.wait_empty(noop_server, "noop_forward")
    before = metrics.read(noop_server, "omni_requests_total", pipeline="noop_forward", state="aborted")
    terminal = converse(noop_server, '{"chunks": 200000, "chunk_bytes": 2}')
    try:
        terminal.read_until("> ")
        terminal.type("Hi\n")
        terminal.read_until("xx")
        terminal.process.send_signal(signal.SIGINT)
        terminal.read_until("\n> ")
        metrics.wait_empty(noop_server, "noop_forward")
        after = metrics.read(noop_server, "omni_requests_total", pipeline="noop_forward", state="aborted")
        assert after == before + 1
        terminal.type("\x04")
        assert terminal.process.wait(10) == 0
    finally:
        terminal.close()


def test_a_terminal_gets_no_control_characters() -> None:
    assert without_controls("a\x1b[31mb\x07\r\x9b2J\n\tü 中 😀") == "a\ufffd[31mb\ufffd\ufffd\ufffd2J\n\tü 中 😀"
