"""Replicas on a real server: each an instance of a Triton model, and one killed under load."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import psutil
import pytest

from omni_python.client import OmniClient, OmniClientError, TextDelta
from omni_python.config.compile import compile_pipeline
from omni_python.models.noop.config import NoopForwardPipelineConfig
from omni_python.serve.server_options import ServerOptions
from omni_python.serve.triton_server import TritonServer
from tests.e2e import metrics
from tests.pipeline.test_replicas import replicated
from tests.waiting import wait_until

NOOP = "noop_forward"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TritonServer]:
    """2 sources and 3 sinks of `noop_forward`."""
    repository = tmp_path_factory.mktemp("models")
    compile_pipeline(replicated(NoopForwardPipelineConfig(), a=2, b=3), repository)
    with TritonServer.start(ServerOptions(model_repository=repository), timeout_s=100) as server:
        yield server


def stubs(server: TritonServer) -> dict[str, int]:
    """The pid of each instance of a model of `noop_forward`, by the instance's name."""
    found = {}
    for child in psutil.Process(server.process.pid).children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess, psutil.ZombieProcess):
            names = [part for part in child.cmdline() if part.startswith(f"{NOOP}_")]
            found.update(dict.fromkeys(names, child.pid))
    return found


def reached(server: TritonServer, pipeline: str, stage: str, count: int) -> list[float]:
    """Requests that ever reached each replica of a stage."""
    return [
        metrics.read(server, "omni_stage_requests_total", pipeline=pipeline, stage=stage, replica=str(i))
        for i in range(count)
    ]


def trace(server: TritonServer, chunks: int) -> str:
    """The pair of replicas that made all chunks of a request."""
    with OmniClient(server.grpc_url, NOOP) as client:
        words = client.chat("x", sampling={"chunks": chunks, "tell_makers": True}).text.split()
    [(pair, count)] = Counter(word for word in words if ">" in word).items()
    assert count == chunks
    return pair


def test_64_at_once_each_from_one_replica_of_each_stage(server: TritonServer) -> None:
    metrics.wait_empty(server, NOOP)
    before = reached(server, NOOP, "b", 3)
    with ThreadPoolExecutor(64) as pool:
        pairs = Counter(pool.map(lambda _: trace(server, 40), range(64)))
    assert len(pairs) == 6 and {pair.split(".")[0] for pair in pairs} <= {str(pid) for pid in stubs(server).values()}
    wait_until(lambda: sum(reached(server, NOOP, "b", 3)) >= sum(before) + 64, period=0.05)
    metrics.wait_empty(server, NOOP)
    spread = [after - earlier for after, earlier in zip(reached(server, NOOP, "b", 3), before, strict=True)]
    assert sum(spread) == 64 and min(spread) >= 4, spread  # one that the machine holds up gets fewer


def replica_requests(server: TritonServer) -> list[float]:
    """What each replica of process b works on."""
    labels = {"pipeline": NOOP, "process": "b"}
    return [metrics.read(server, "omni_replica_requests", replica=str(i), **labels) for i in range(3)]


def test_a_client_that_leaves_ends_its_request_in_its_replicas(server: TritonServer) -> None:
    metrics.wait_empty(server, NOOP)
    before = reached(server, NOOP, "b", 3)
    with OmniClient(server.grpc_url, NOOP) as client:
        streams = [client.stream("x", sampling={"chunks": 100_000, "chunk_bytes": 3}) for _ in range(3)]
        for events in streams:
            assert isinstance(next(events), TextDelta)
        wait_until(lambda: replica_requests(server) == [1, 1, 1], period=0.05)
        for events in streams:
            events.close()
    wait_until(lambda: sum(reached(server, NOOP, "b", 3)) >= sum(before) + 3, period=0.05)
    metrics.wait_empty(server, NOOP)
    assert [n - m for n, m in zip(reached(server, NOOP, "b", 3), before, strict=True)] == [1, 1, 1]


@pytest.mark.parametrize("process", ["a", "b"])
def test_the_death_of_a_replica_leaves_the_others_alone(server: TritonServer, process: str) -> None:
    """New requests go to the others at once, and the dead instance comes back without a pause of theirs."""
    before = stubs(server)
    victim = f"{NOOP}_{process}_r1_0"
    good, errors, stopping = [0], list[str](), threading.Event()

    def load() -> None:
        while not stopping.is_set():
            try:
                trace(server, 100)
                good[0] += 1
            except OmniClientError as error:
                errors.append(str(error))

    threads = [threading.Thread(target=load) for _ in range(6)]
    for thread in threads:
        thread.start()
    try:
        time.sleep(0.5)
        os.kill(before[victim], signal.SIGKILL)
        time.sleep(0.3)
        before_return = good[0]
        end = time.monotonic() + 40
        while stubs(server).get(victim, before[victim]) == before[victim]:
            assert time.monotonic() < end, "not restarted"
            time.sleep(0.1)
        assert good[0] > before_return, "nobody was served while the dead instance was replaced"
        time.sleep(1.0)
    finally:
        stopping.set()
        for thread in threads:
            thread.join(30)
    assert good[0] > 20
    assert len(errors) <= 6 and all(f"process {process}@1 (stages {process}) died" in error for error in errors), errors
    after = stubs(server)
    assert {name for name in before if before[name] != after[name]} == {victim}
    end = time.monotonic() + 20
    while str(after[victim]) not in {name.split(".")[0] for name in trace(server, 5).split(">")}:
        assert time.monotonic() < end, "the new instance gets no requests"
        time.sleep(0.05)
    metrics.wait_empty(server, NOOP)  # a dead process's gauges stay until its successor writes them
