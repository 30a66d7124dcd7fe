"""Stage processes are really killed and stopped, under load, on a real server."""

from __future__ import annotations

import os
import random
import signal
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pytest

from omni_python.client import OmniClient, OmniClientError
from omni_python.config.compile import compile_pipeline
from omni_python.config.parts import LimitsConfig
from omni_python.control.directory import find_server_directory
from omni_python.control.liveness import read_life_signs
from omni_python.control.stops import STOPPED_S
from omni_python.models.noop.config import NoopLinePipelineConfig
from omni_python.serve.server_options import ServerOptions
from omni_python.serve.triton_server import TritonServer
from tests.e2e import metrics
from tests.faults.tracing import Traced
from tests.waiting import wait_until

pytestmark = pytest.mark.alone

PIPELINE = "noop_line"
SILENCE = 6.0


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TritonServer]:
    repository = tmp_path_factory.mktemp("models")
    compile_pipeline(NoopLinePipelineConfig(limits=LimitsConfig(silence_s=SILENCE)), repository)
    with TritonServer.start(ServerOptions(model_repository=repository, exit_timeout_s=5)) as server:
        yield server


def stub(server: TritonServer, process: str) -> psutil.Process:
    """The stub process of a stage process's model."""
    assert not server.has_exited(), server.log.read_text(errors="replace")[-3000:]
    part = f"/{PIPELINE}_{process}/1/"
    for child in psutil.Process(server.process.pid).children(recursive=True):
        with suppress(psutil.NoSuchProcess):  # or a zombie
            if any(part in argument for argument in child.cmdline()):
                return child
    raise AssertionError(f"there is no process {process}")


@dataclass
class Load:
    """Clients that ask again and again until told to stop; every request must end, one way or the other."""

    server: TritonServer
    good: int = 0
    errors: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    longest: float = 0.0
    stopping: threading.Event = field(default_factory=threading.Event)
    threads: list[threading.Thread] = field(default_factory=list)

    def __enter__(self) -> Load:
        self.threads = [threading.Thread(target=self._run) for _ in range(6)]
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.stopping.set()
        for thread in self.threads:
            thread.join(30)
        assert not any(thread.is_alive() for thread in self.threads), "a request never ended"

    def _run(self) -> None:
        rng = random.Random()
        with OmniClient(self.server.grpc_url, PIPELINE) as client:
            while not self.stopping.is_set():
                nbytes = rng.choice((0, 1000, 300_000))
                start = time.monotonic()
                try:
                    text = client.chat("x", sampling={"nbytes": nbytes, "delay": rng.choice((0, 0.005))}).text
                    if f'"nbytes":{nbytes},' in text:
                        self.good += 1
                    else:
                        self.wrong.append(text)
                except OmniClientError as error:
                    self.errors.append(str(error))
                self.longest = max(self.longest, time.monotonic() - start)


def wait_served(server: TritonServer, seconds: float) -> float:
    """Seconds until a request succeeds."""
    start = time.monotonic()
    with OmniClient(server.grpc_url, PIPELINE) as client:
        while time.monotonic() - start < seconds:
            try:
                client.chat("x")
                return time.monotonic() - start
            except OmniClientError:
                time.sleep(0.05)
    raise AssertionError(f"not served again after {seconds} s")


@pytest.mark.parametrize("process", ["a", "b", "c"])
def test_a_killed_stage_fails_its_requests_at_once_and_comes_back(server: TritonServer, process: str) -> None:
    before = stub(server, process)
    there = sockets(server)
    with Load(server) as load:
        wait_until(lambda: load.good > 5, 20)
        before.kill()
        wait_served(server, 30)
        good = load.good
        wait_until(lambda: load.good > good + 5, 20)
    assert load.wrong == []
    assert all(f"process {process}" in error or "did not take" in error for error in load.errors), set(load.errors)
    assert load.longest < 20
    assert stub(server, process).pid != before.pid
    metrics.wait_empty(server, PIPELINE)
    now = sockets(server)
    assert len(now) == len(there)
    assert len(now & there) == len(there) - 1, "the dead process's socket is still there"


def directory(server: TritonServer) -> Path:
    base = Path(os.environ.get("XDG_RUNTIME_DIR") or tempfile.gettempdir())
    found = find_server_directory(base, server.process.pid)
    assert found is not None
    return found


def sockets(server: TritonServer) -> set[str]:
    """And the signs of life beside them, but not those that are just being written."""
    return {path.name for path in directory(server).iterdir() if path.suffix != ".draft"}


def test_the_sign_of_life_says_that_all_processes_are_there(server: TritonServer) -> None:
    wait_until(lambda: read_life_signs(directory(server))[PIPELINE].sign.complete, period=0.1)


def is_gone(process: psutil.Process) -> bool:
    with suppress(psutil.NoSuchProcess):
        return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    return True


def test_a_stage_that_a_signal_stopped_is_replaced_and_its_requests_are_told(server: TritonServer) -> None:
    process = stub(server, "b")
    with OmniClient(server.grpc_url, PIPELINE) as client:
        process.send_signal(signal.SIGSTOP)
        with pytest.raises(OmniClientError, match="process b .* was stopped by a signal and killed"):
            client.chat("x")
    wait_served(server, 30)
    assert is_gone(process)
    metrics.wait_empty(server, PIPELINE)


def test_a_stage_that_a_debugger_stops_is_left_alone_until_it_has_been_silent_for_long(server: TritonServer) -> None:
    """It hangs without being dead, or stopped by a signal, and goes on where it was let go in time."""
    process = stub(server, "b")
    with OmniClient(server.grpc_url, PIPELINE) as client:
        with ThreadPoolExecutor(1) as pool, Traced(process.pid):
            answer = pool.submit(client.chat, "x")
            time.sleep(SILENCE / 4)  # a sign of life is due each second, and the machine may pause besides
        assert answer.result(10).text == '{"nbytes":0,"last":0}'
        assert stub(server, "b").pid == process.pid
        with Traced(process.pid), pytest.raises(OmniClientError, match=r"process b .* was silent for \d+ s and killed"):
            client.chat("x")
    wait_served(server, 30)
    assert is_gone(process)
    metrics.wait_empty(server, PIPELINE)


def test_a_server_that_is_stopped_whole_goes_on_as_it_was(server: TritonServer) -> None:
    """As Ctrl-Z does it to what runs in the foreground, and `fg` lets it go on."""
    before = {process: stub(server, process).pid for process in "abc"}
    with OmniClient(server.grpc_url, PIPELINE) as client, ThreadPoolExecutor(1) as pool:
        answer = pool.submit(client.chat, "x", sampling={"delay": 0.5})
        os.killpg(server.process.pid, signal.SIGSTOP)
        time.sleep(4 * STOPPED_S)
        os.killpg(server.process.pid, signal.SIGCONT)
        assert answer.result(20).text == '{"nbytes":0,"last":0}'
    time.sleep(2 * STOPPED_S)
    assert {process: stub(server, process).pid for process in "abc"} == before


def wait_settled(server: TritonServer, process: str, times: int) -> None:
    """Until Triton has done with loading a process so many times, which serves before that: where one dies in the midst
    of it, 24.10 itself aborts now and then (`boost::interprocess::lock_exception`), or waits for ever."""
    back = f"process {process} is back after"
    wait_until(lambda: server.log.read_text(errors="replace").count(back) >= times, 30, 0.05)
    wait_until(lambda: server.is_model_ready(f"{PIPELINE}_{process}"), 30, 0.05)
    time.sleep(0.5)


def test_a_crash_loop_is_given_up_with_its_reason(tmp_path: Path) -> None:
    compile_pipeline(NoopLinePipelineConfig(), tmp_path)
    with (
        TritonServer.start(ServerOptions(model_repository=tmp_path, exit_timeout_s=5)) as server,
        OmniClient(server.grpc_url, PIPELINE) as client,
    ):
        for times in range(1, 6):
            os.kill(stub(server, "b").pid, signal.SIGKILL)
            wait_served(server, 30)
            wait_settled(server, "b", times)
        os.kill(stub(server, "b").pid, signal.SIGKILL)
        deadline = time.monotonic() + 30
        message = ""
        while "not restarted again" not in message and time.monotonic() < deadline:
            start = time.monotonic()
            with pytest.raises(OmniClientError) as failed:
                client.chat("x")
            message = str(failed.value)
        assert "process b of noop_line: it died 6 times within 300 s and is not restarted again" in message
        assert time.monotonic() - start < 10, "it has waited for a stage that nobody brings back"
