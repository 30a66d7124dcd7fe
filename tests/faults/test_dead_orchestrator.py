"""A client's requests end although Triton never ends those of an orchestrator that died or hangs."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from omni_python.client import AsyncOmniClient, DeadlineExceeded, OmniClient, OmniClientError, Unavailable
from omni_python.client._watch import PERIOD
from omni_python.config.compile import compile_pipeline
from omni_python.models.noop.config import NoopLinePipelineConfig
from omni_python.serve.orchestrators import Orchestrators
from omni_python.serve.server_options import ServerOptions
from omni_python.serve.triton_server import TritonServer
from tests.e2e import metrics
from tests.faults.load import GRACE
from tests.waiting import wait_until

PIPELINE = "noop_line"
LONG = {"delay": 60.0}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TritonServer]:
    repository = tmp_path_factory.mktemp("models")
    compile_pipeline(NoopLinePipelineConfig(), repository)
    with TritonServer.start(ServerOptions(model_repository=repository, exit_timeout_s=1)) as server:
        yield server


def orchestrator(server: TritonServer) -> psutil.Process:
    for child in psutil.Process(server.process.pid).children():
        with suppress(psutil.NoSuchProcess):  # or a zombie
            if any(f"/{PIPELINE}/1/" in word for word in child.cmdline()):
                return child
    raise AssertionError("there is no orchestrator")


def ask(url: str, sampling: dict[str, float]) -> None:
    with OmniClient(url, PIPELINE) as client:
        client.chat("x", sampling=sampling)


def stream(url: str, sampling: dict[str, float]) -> None:
    with OmniClient(url, PIPELINE) as client:
        list(client.stream("x", sampling=sampling))


def ask_async(url: str, sampling: dict[str, float]) -> None:
    async def ask() -> None:
        async with AsyncOmniClient(url, PIPELINE) as client:
            await client.chat("x", sampling=sampling)

    asyncio.run(ask())


WAYS = (ask, stream, ask_async)
Way = Callable[[str, dict[str, float]], None]


def ends(url: str, sampling: dict[str, float], hit: Callable[[], None]) -> dict[str, tuple[str, float]]:
    """Requests of every way at once, and what is then done: how each ended, and how many seconds after."""
    ended: dict[str, tuple[str, float]] = {}

    def run(way: Way) -> None:
        try:
            way(url, sampling)
        except OmniClientError as error:
            ended[way.__name__] = (f"{type(error).__name__}: {error}", time.monotonic())

    threads = [threading.Thread(target=run, args=(way,)) for way in WAYS]
    for thread in threads:
        thread.start()
    hit()
    since = time.monotonic()
    for thread in threads:
        thread.join(60)
    assert len(ended) == len(WAYS)
    return {name: (error, at - since) for name, (error, at) in ended.items()}


def wait_asked(server: TritonServer) -> None:
    """Until a request of every way is in flight."""
    wait_until(lambda: metrics.in_flight(server, PIPELINE) == len(WAYS), 20, 0.05)


def test_requests_to_a_server_that_says_nothing_end_by_their_deadline() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        ended = ends(f"127.0.0.1:{silent.getsockname()[1]}", {"timeout_ms": 1000}, lambda: None)
    for error, seconds in ended.values():
        assert error.startswith(f"{DeadlineExceeded.__name__}: the server did not end the request by its deadline")
        assert seconds < 1 + GRACE


def test_a_slow_request_of_a_living_orchestrator_goes_on(server: TritonServer) -> None:
    start = time.monotonic()
    ask(server.grpc_url, {"delay": 3.5})
    assert time.monotonic() - start > PERIOD + 1, "it was not slow enough to be looked after"


def test_requests_end_when_their_orchestrator_dies(server: TritonServer) -> None:
    """Without a deadline, and with nobody to load it again."""

    def kill() -> None:
        wait_asked(server)
        orchestrator(server).kill()

    ended = ends(server.grpc_url, LONG, kill)
    for error, seconds in ended.values():
        assert error.startswith(f"{Unavailable.__name__}: the orchestrator of pipeline {PIPELINE} died"), error
        assert seconds < 25


def test_requests_end_when_their_orchestrator_was_replaced(server: TritonServer) -> None:
    base = NoopLinePipelineConfig().endpoints.resolved_base_path
    orchestrators = Orchestrators(server, [Path(base)], silence=15)
    orchestrators.reload(PIPELINE)
    # A dead process's gauges stay until its successor writes them.
    wait_until(lambda: metrics.in_flight(server, PIPELINE) == 0, 20, 0.05)
    process = orchestrator(server)

    def replace() -> None:
        wait_asked(server)
        process.kill()
        orchestrators.reload(PIPELINE)

    ended = ends(server.grpc_url, LONG, replace)
    for error, seconds in ended.values():
        assert error.startswith(f"{Unavailable.__name__}: the orchestrator of pipeline {PIPELINE} died"), error
        assert seconds < 25
