"""`omni serve` when nobody reads any more what it writes: its terminal is closed, or who read its log has ended."""

from __future__ import annotations

import fcntl
import os
import pty
import signal
import subprocess
import sys
import termios
import threading
import time
from contextlib import suppress
from pathlib import Path

import pytest

from omni_python.config.compile import compile_pipeline
from omni_python.models.noop.config import NoopLinePipelineConfig
from tests.faults.serving import Serving
from tests.faults.test_supervisor import ask, wait_asked


class Piped(Serving):
    """It writes to a pipe; what comes out goes to `log`, until `hang_up`."""

    wrapper: tuple[str, ...] = ()
    """A command that starts the server."""

    def start(self) -> None:
        self._reader, writer = self._way()
        names = zip(("http", "grpc", "metrics"), self.ports, strict=True)
        command = [*self.wrapper, sys.executable, "-m", "omni_python.cli", "serve"]
        command += [f"--model-repository={self.repository}"]
        command += [f"--{name}-port={port}" for name, port in names]
        self.process = self._run(command, writer)
        os.close(writer)
        self._hung_up = threading.Event()
        self.log.touch()
        self._copying = threading.Thread(target=self._copy, daemon=True)
        self._copying.start()
        try:
            self.wait_said("omni serve: ready", self.start_timeout)
        except BaseException:
            self.stop(signal.SIGKILL)
            raise

    def hang_up(self) -> None:
        self._hung_up.set()
        self._copying.join()

    def stop(self, number: int = signal.SIGTERM, timeout: float = 60.0) -> int:
        self.hang_up()
        return super().stop(number, timeout)

    def _way(self) -> tuple[int, int]:
        return os.pipe()

    def _run(self, command: list[str], writer: int) -> subprocess.Popen[bytes]:
        return subprocess.Popen(command, stdout=writer, stderr=writer)

    def _copy(self) -> None:
        os.set_blocking(self._reader, False)
        with self.log.open("wb", buffering=0) as log:
            while not self._hung_up.wait(0.05):
                with suppress(OSError):  # there is nothing to read, or nobody left who writes
                    log.write(os.read(self._reader, 1 << 16))
        os.close(self._reader)


class OnTerminal(Piped):
    """The same with a terminal of its own."""

    def _way(self) -> tuple[int, int]:
        return pty.openpty()

    def _run(self, command: list[str], writer: int) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            command,
            stdin=writer,
            stdout=writer,
            stderr=writer,
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )


class Kept(Piped):
    """Started by `nohup`, which ignores what a closed terminal sends, and starts the command in its own place."""

    wrapper = ("nohup",)


@pytest.mark.parametrize("kind", [OnTerminal, Piped])
def test_requests_end_although_nobody_reads_what_is_written(kind: type[Piped], tmp_path: Path) -> None:
    compile_pipeline(NoopLinePipelineConfig(), tmp_path / "models")
    serving = kind(tmp_path / "models", tmp_path / "log")
    with serving:
        answers: list[str] = []
        asking = threading.Thread(target=lambda: answers.append(ask(serving, delay=4.0, nbytes=3).text))
        asking.start()
        wait_asked(serving)
        serving.hang_up()
        if kind is OnTerminal:  # the kernel has sent a signal; a shell that goes with the terminal sends one more
            time.sleep(0.5)
        serving.process.send_signal(signal.SIGHUP)
        asking.join(60)
        assert answers == ['{"nbytes":3,"last":2}']
        assert serving.process.wait(60) == 0


def test_nohup_keeps_it_serving(tmp_path: Path) -> None:
    compile_pipeline(NoopLinePipelineConfig(), tmp_path / "models")
    serving = Kept(tmp_path / "models", tmp_path / "log")
    with serving:
        serving.hang_up()
        serving.process.send_signal(signal.SIGHUP)
        time.sleep(1)  # what it must not do would have begun
        assert ask(serving, nbytes=3).text == '{"nbytes":3,"last":2}'
        assert serving.stop() == 0
