"""A server that stops normally leaves nothing of ours behind."""

from __future__ import annotations

import os
import tempfile
import threading
import time
from pathlib import Path

import psutil
import pytest

from omni_python.client import OmniClient, OmniClientError
from omni_python.config.compile import compile_pipeline
from omni_python.models.noop.config import NoopLinePipelineConfig
from omni_python.serve.server_options import ServerOptions
from omni_python.serve.triton_server import TritonServer
from tests.conftest import LeakCheck
from tests.e2e import metrics

pytestmark = pytest.mark.alone


def socket_directories(server: TritonServer) -> list[Path]:
    base = Path(os.environ.get("XDG_RUNTIME_DIR") or tempfile.gettempdir())
    return list(base.glob(f"omni-{os.getuid()}-{server.process.pid}-*"))


ANSWERS = ['{"nbytes":7,"last":6}'] * 3


@pytest.mark.parametrize("busy", [False, True], ids=["idle", "with requests in flight"])
def test_nothing_is_left(tmp_path: Path, no_leaks: LeakCheck, busy: bool) -> None:
    compile_pipeline(NoopLinePipelineConfig(), tmp_path)
    answers = stopped(tmp_path, no_leaks, busy)
    if busy and answers != ANSWERS:  # stages wait a second for requests in flight, and the machine may pause for longer
        answers = stopped(tmp_path, no_leaks, busy)
    assert answers == (ANSWERS if busy else []), "SIGTERM lets requests in flight end"


def stopped(repository: Path, no_leaks: LeakCheck, busy: bool) -> list[str]:
    """What requests were answered that were in flight when a server was stopped."""
    answers: list[str] = []
    with no_leaks():
        with TritonServer.start(ServerOptions(model_repository=repository, exit_timeout_s=10)) as server:
            stubs = psutil.Process(server.process.pid).children(recursive=True)
            assert len(stubs) == 4
            assert len(socket_directories(server)) == 1
            client = OmniClient(server.grpc_url, "noop_line")
            assert client.chat("x", sampling={"nbytes": 3 << 20}).text == '{"nbytes":3145728,"last":255}'
            asking = asked(server, client, answers) if busy else []
            start = time.monotonic()
        assert time.monotonic() - start < 15
        for thread in asking:
            thread.join()
        client.close()
    _, alive = psutil.wait_procs(stubs, timeout=10)
    assert not [stub for stub in alive if stub.status() != psutil.STATUS_ZOMBIE]
    assert socket_directories(server) == []
    return answers


def asked(server: TritonServer, client: OmniClient, answers: list[str]) -> list[threading.Thread]:
    """Requests that are all in flight, as far as the metrics tell in time: they last a second at most."""
    for _ in range(8):
        answers.clear()
        asking = [threading.Thread(target=_ask, args=(client, delay, answers)) for delay in (0.8, 0.02, 0.02)]
        for thread in asking:
            thread.start()
        while not answers:
            if metrics.in_flight(server, "noop_line") == len(asking):
                return asking
            time.sleep(0.01)
        for thread in asking:
            thread.join()
    raise AssertionError("the metrics are late each time")


def _ask(client: OmniClient, delay: float, answers: list[str]) -> None:
    try:
        answers.append(client.chat("x", sampling={"delay": delay, "nbytes": 7}).text)
    except OmniClientError as error:
        answers.append(str(error))


def test_leftovers_of_a_killed_server_are_removed_by_the_next(tmp_path: Path) -> None:
    compile_pipeline(NoopLinePipelineConfig(), tmp_path)
    with TritonServer.start(ServerOptions(model_repository=tmp_path)) as killed:
        stubs = psutil.Process(killed.process.pid).children(recursive=True)
        killed.process.kill()
        for stub in stubs:
            stub.kill()
        psutil.wait_procs(stubs, timeout=5)
        assert len(socket_directories(killed)) == 1
    with TritonServer.start(ServerOptions(model_repository=tmp_path)) as server:
        with OmniClient(server.grpc_url, "noop_line") as client:
            assert client.chat("x").text
        assert socket_directories(killed) == []
    assert socket_directories(server) == []
