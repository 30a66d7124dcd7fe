"""What a supervisor does at single moments, with a process and a scripted HTTP service that stand for a server."""

from __future__ import annotations

import json
import os
import subprocess
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace

import pytest

from omni_python.control.directory import server_directory
from omni_python.control.inbox import Inbox
from omni_python.control.liveness import LifeSign, write_life_sign
from omni_python.pipeline.membership import coordinator_address
from omni_python.proto.messages import ControlMessage, DrainMessage
from omni_python.serve import orchestrators as orchestrators_module
from omni_python.serve import supervisor as supervisor_module
from omni_python.serve.given_up import Stub
from omni_python.serve.orchestrators import Death, Orchestrators
from omni_python.serve.server_options import ServerOptions
from omni_python.serve.supervisor import Policy, Supervisor
from omni_python.serve.triton_server import TritonServer
from tests.waiting import wait_until


class Ready(BaseHTTPRequestHandler):
    """A server that is ready."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps({"name": "here"}).encode())

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def server(directory: Path) -> Iterator[TritonServer]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Ready) as http, subprocess.Popen(["sleep", "100"]) as process:
        threading.Thread(target=http.serve_forever, daemon=True).start()
        port = http.server_address[1]
        yield TritonServer("127.0.0.1", port, port, port, process, directory / "log", "here", 1, 1, directory)
        process.kill()
        http.shutdown()


@pytest.fixture
def orchestrators(server: TritonServer, directory: Path) -> Iterator[Orchestrators]:
    orchestrators = Orchestrators(server, [directory], 100.0)
    yield orchestrators
    orchestrators.close()


class Coordinator:
    """An orchestrator's ear, which shows in its sign of life that it has heard of the drain."""

    def __init__(self, directory: Path, name: str, pid: int) -> None:
        self._directory, self._name, self._pid = directory, name, pid
        self.heard: list[ControlMessage] = []
        self._inbox = Inbox(coordinator_address(directory, name), self._hear)
        self._inbox.start()
        write_life_sign(directory, name, LifeSign(pid, 0))  # from now on it can be told

    def stop(self) -> None:
        self._inbox.stop()

    def _hear(self, message: ControlMessage) -> None:
        write_life_sign(self._directory, self._name, LifeSign(self._pid, 0, draining=True))
        self.heard.append(message)


def test_an_orchestrator_that_comes_back_during_a_drain_is_told_of_it(
    server: TritonServer, orchestrators: Orchestrators, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pid = server.process.pid
    place = server_directory(directory, pid)
    write_life_sign(place, "busy", LifeSign(pid, 1, draining=True))
    looked = threading.Event()

    def in_flight() -> int:
        looked.set()
        return Orchestrators.in_flight(orchestrators)

    monkeypatch.setattr(orchestrators, "in_flight", in_flight)
    left: list[int] = []
    supervisor = Supervisor(ServerOptions(model_repository=directory), [directory], Policy(drain_s=60))
    draining = threading.Thread(target=lambda: left.append(supervisor._let_end(server, orchestrators)))
    draining.start()
    assert looked.wait(30), "all that are there have been told by now"
    back = Coordinator(place, "back", pid)
    try:
        wait_until(lambda: back.heard, timeout=30)
    finally:
        write_life_sign(place, "busy", LifeSign(pid, 0, draining=True))
        draining.join(90)
        back.stop()
    assert left == [0] and set(back.heard) == {DrainMessage(0)}


def test_a_stub_that_ends_before_it_can_be_ended_is_well(
    server: TritonServer, orchestrators: Orchestrators, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = int(Path("/proc/sys/kernel/pid_max").read_text())  # no process ever has it
    looks: list[float] = []

    class GivenUpStubs:
        def __init__(self, server_pid: int) -> None:
            pass

        def look(self, now: float) -> list[Stub]:
            looks.append(now)
            if len(looks) > 2:
                server.process.kill()
            return [Stub(gone, "line_b_0_0")]

    monkeypatch.setattr(supervisor_module, "GivenUpStubs", GivenUpStubs)
    supervisor = Supervisor(ServerOptions(model_repository=directory), [directory], Policy())
    with supervisor._signals():
        assert supervisor._watch(server, orchestrators), "it was ready"
    assert len(looks) > 2


def test_only_what_is_silent_while_the_supervisor_looks_counts_as_silent(
    server: TritonServer, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither a clock that is set, nor a pause of the whole machine, nor a sign that was old when it was first seen."""
    silence = 5.0
    now = 1000.0
    monkeypatch.setattr(orchestrators_module, "time", SimpleNamespace(monotonic=lambda: now, time=time.time))
    orchestrators = Orchestrators(server, [directory], silence)
    pid = server.process.pid
    place = server_directory(directory, pid)
    sign = place / "line.alive"

    def silent_looks() -> int:
        nonlocal now
        for number in range(100):
            if dead := orchestrators.take_dead():
                assert dead["line"] == Death(pid, f"was silent for {silence:.0f} s and killed")
                return number
            now += 0.25
        return 100

    write_life_sign(place, "line", LifeSign(pid, 0))
    os.utime(sign, (1, 1))
    assert orchestrators.take_dead() == {}, "it was old when it was first seen"
    for age in (-60, 60, 3600):  # as the wall clock is set
        os.utime(sign, (time.time() - age,) * 2)
        now += 0.25
        assert orchestrators.take_dead() == {}
    now += 3600
    assert orchestrators.take_dead() == {}, "the supervisor was held up"
    now += 0.25
    write_life_sign(place, "line", LifeSign(pid, 0))
    assert silent_looks() == silence / 0.25 + 1
    orchestrators.close()
