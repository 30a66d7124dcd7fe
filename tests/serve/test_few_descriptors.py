"""A supervisor that has too few file descriptors, or many: it looks after its server all the same."""

from __future__ import annotations

import fcntl
import itertools
import os
import resource
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import SimpleNamespace

import pytest

from omni_python.control.directory import server_directory
from omni_python.control.liveness import LifeSign, read_life_signs, remove_life_sign, write_life_sign
from omni_python.control.restart_wishes import restart_wishes, wish_restart
from omni_python.serve import orchestrators as orchestrators_module
from omni_python.serve.descriptors import raise_limit
from omni_python.serve.health import ServerHealth
from omni_python.serve.orchestrators import Orchestrators
from omni_python.serve.server_options import ServerOptions
from omni_python.serve.supervisor import Policy, Supervisor
from omni_python.serve.triton_server import TritonServer
from tests.waiting import wait_until

SILENCE = 5.0


@contextmanager
def file_limit(soft: int) -> Iterator[None]:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


@contextmanager
def none_left() -> Iterator[None]:
    """This process cannot open anything."""
    held = []
    with file_limit(256):
        with suppress(OSError):
            while True:
                held.append(os.open(os.devnull, os.O_RDONLY))
        try:
            yield
        finally:
            for descriptor in held:
                os.close(descriptor)


@pytest.fixture
def process() -> Iterator[subprocess.Popen[bytes]]:
    """It stands for a server, and for its orchestrator, too."""
    with subprocess.Popen(["sleep", "100"]) as process:
        yield process
        process.kill()


@pytest.fixture
def server(process: subprocess.Popen[bytes], tmp_path: Path) -> TritonServer:
    return TritonServer("127.0.0.1", 1, 1, 1, process, tmp_path / "log", "x", 1, 1, tmp_path)


@pytest.fixture
def orchestrators(server: TritonServer, tmp_path: Path) -> Iterator[Orchestrators]:
    orchestrators = Orchestrators(server, [tmp_path], SILENCE)
    yield orchestrators
    orchestrators.close()


def test_nothing_is_told_of_what_cannot_be_looked_at(
    process: subprocess.Popen[bytes], orchestrators: Orchestrators, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = itertools.count(1000.0, 0.5)
    monkeypatch.setattr(orchestrators_module, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    looks = 4 * int(SILENCE)
    directory = server_directory(tmp_path, process.pid)
    write_life_sign(directory, "line", LifeSign(process.pid, 3, draining=True))
    assert orchestrators.take_dead() == {} and orchestrators.in_flight() == 3
    wish_restart(directory, "line", "is tired")
    with none_left():
        for _ in range(looks):
            assert orchestrators.take_dead() == {} and orchestrators.in_flight() == 3
        assert restart_wishes(directory) == {}
        with pytest.raises(OSError, match="Too many open files"):
            read_life_signs(directory)
    assert restart_wishes(directory) == {"line": "is tired"}
    assert orchestrators.take_dead() == {}, "the time counts in which nothing could be read"
    [death] = [found["line"] for _ in range(looks) if (found := orchestrators.take_dead())][:1]
    assert death.what.startswith("was silent for ")


def test_an_orchestrator_that_cannot_be_looked_at_does_not_count_as_dead(
    process: subprocess.Popen[bytes], server: TritonServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its sign was the last thing that could be read."""
    directory = server_directory(tmp_path, process.pid)
    write_life_sign(directory, "line", LifeSign(process.pid, 3, draining=True))
    orchestrators = Orchestrators(server, [tmp_path], SILENCE)
    known = orchestrators._found()
    monkeypatch.setattr(orchestrators, "_found", lambda: known)
    with none_left():
        assert orchestrators.take_dead() == {} and orchestrators.in_flight() == 3


def test_not_being_able_to_ask_is_no_silence(
    server: TritonServer, orchestrators: Orchestrators, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def is_live() -> bool:
        asked.append(time.monotonic())
        return TritonServer.is_live(server)

    monkeypatch.setattr(server, "is_live", is_live)
    health = ServerHealth(server, orchestrators, SILENCE, None)
    with none_left():
        health.begin()
        wait_until(lambda: len(asked) > 2, timeout=60)
        assert health.complaint(time.monotonic() + 2 * SILENCE) == ""
    wait_until(lambda: health.complaint(time.monotonic() + 2 * SILENCE).startswith("has been silent for "), timeout=60)
    health.close()


def test_an_orchestrator_that_ended_in_order_is_not_watched_on(
    process: subprocess.Popen[bytes], orchestrators: Orchestrators, tmp_path: Path
) -> None:
    """What is watched of a process that has ended would let no wait for the others wait."""
    directory = server_directory(tmp_path, process.pid)
    with subprocess.Popen(["sleep", "100"]) as orchestrator:
        write_life_sign(directory, "line", LifeSign(orchestrator.pid, 0))
        assert orchestrators.take_dead() == {} and len(orchestrators.pidfds()) == 1
        remove_life_sign(directory, "line")
        orchestrator.kill()
    assert orchestrators.take_dead() == {} and orchestrators.pidfds() == []


def test_descriptors_of_any_number_are_waited_for(tmp_path: Path) -> None:
    supervisor = Supervisor(ServerOptions(model_repository=tmp_path), [], Policy())
    read, write = os.pipe()
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    if hard < 2048:
        pytest.skip(f"no process here has more than {hard} descriptors")
    with supervisor._signals(), file_limit(hard):
        high = fcntl.fcntl(read, fcntl.F_DUPFD, 1500)
        try:
            start = time.monotonic()
            supervisor._wait([high], 0.05)
            assert time.monotonic() - start > 0.04
            os.write(write, b"x")
            supervisor._wait([high], 60)
            assert time.monotonic() - start < 50
        finally:
            for descriptor in (high, read, write):
                os.close(descriptor)


def test_the_limit_is_raised_to_what_the_system_allows() -> None:
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    with file_limit(256):
        raise_limit()
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (hard, hard)
