"""How requests are cancelled: by their key, over a connection that goes on."""

from __future__ import annotations

import asyncio
import json
import queue
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc
from tritonclient.utils import InferenceServerException

from omni_python.client import AsyncOmniClient, ConnectionLost, InvalidRequest, OmniClient, TextDelta
from omni_python.client._leaving import LEAVE_S, new_key
from omni_python.serve.triton_server import TritonServer
from tests.e2e import metrics

PIPELINE = "noop_forward"
LONG = {"chunks": 200_000, "chunk_bytes": 8}


class Stream:
    """A stream of Triton's own client, on which any number of requests are made."""

    def __init__(self, server: TritonServer) -> None:
        self._client = tritonclient.grpc.InferenceServerClient(server.grpc_url)
        self._told: queue.Queue[tuple[Any, InferenceServerException | None]] = queue.Queue()
        self._client.start_stream(lambda result, error: self._told.put((result, error)))

    def close(self) -> None:
        self._client.stop_stream()
        self._client.close()

    def send(self, parameters: dict[str, str], **inputs: bytes | bool) -> None:
        tensors = []
        for name, value in inputs.items():
            is_flag = isinstance(value, bool)
            tensor = tritonclient.grpc.InferInput(name, [1], "BOOL" if is_flag else "BYTES")
            tensor.set_data_from_numpy(np.array([value], np.bool_ if is_flag else np.object_))
            tensors.append(tensor)
        self._client.async_stream_infer(PIPELINE, tensors, parameters=parameters)

    def next(self) -> str:
        """Of the next response: "" or its error."""
        _, error = self._told.get(timeout=30)
        return "" if error is None else str(error.message())

    def error(self) -> str:
        """The next one, whatever comes before."""
        while not (error := self.next()):
            pass
        return error


@pytest.fixture
def stream(noop_server: TritonServer) -> Iterator[Stream]:
    metrics.wait_empty(noop_server, PIPELINE)
    with closing(Stream(noop_server)) as opened:
        yield opened


def test_a_request_ends_at_once_and_says_so(noop_server: TritonServer, stream: Stream) -> None:
    before, key = metrics.aborted(noop_server, PIPELINE), new_key()
    stream.send({"cancel_key": key}, text_input=b"x", stream=True, sampling_parameters=json.dumps(LONG).encode())
    assert stream.next() == ""
    stream.send({}, cancel=key.encode())
    assert stream.error() == "CANCELLED: the request was cancelled"
    stream.send({}, cancel=key.encode())
    assert stream.error() == "NOT_FOUND: cancel: no request that was sent with this cancel_key is running"
    metrics.wait_left(noop_server, PIPELINE, before + 1)


def test_nobody_ends_what_has_another_key_or_none(stream: Stream, noop_server: TritonServer) -> None:
    before = metrics.aborted(noop_server, PIPELINE)
    with OmniClient(noop_server.grpc_url, PIPELINE) as client:
        events = client.stream("x", sampling={"chunks": 200, "chunk_bytes": 8, "delay": 0.005})
        assert isinstance(next(events), TextDelta)
        for key in (new_key().encode(), b"", b"\xff" * 20, b"x" * 100_000):
            stream.send({}, cancel=key)
            assert stream.error().startswith("NOT_FOUND")
        assert len(list(events)) > 1
    assert metrics.aborted(noop_server, PIPELINE) == before


@pytest.mark.parametrize("key", ["", "short", "x" * 129])
def test_a_key_that_could_be_guessed_is_refused(stream: Stream, key: str) -> None:
    stream.send({"cancel_key": key}, text_input=b"x")
    assert stream.error().startswith("INVALID_ARGUMENT: cancel_key: must be a string of 16 to 128 characters")


def test_over_http(noop_server: TritonServer) -> None:
    def post(end: str, body: dict[str, object]) -> Any:
        url = f"http://{noop_server.http_url}/v2/models/{PIPELINE}/{end}"
        return urllib.request.urlopen(urllib.request.Request(url, json.dumps(body).encode()), timeout=30)

    metrics.wait_empty(noop_server, PIPELINE)
    before, key = metrics.aborted(noop_server, PIPELINE), new_key()
    with post("generate_stream", {"text_input": "x", "stream": True, "cancel_key": key, **LONG}) as reply:
        assert reply.readline()
        with post("generate", {"cancel": key}) as done:
            assert done.status == 200
        assert b"CANCELLED: the request was cancelled" in reply.read()
    metrics.wait_left(noop_server, PIPELINE, before + 1)


def asked(server: TritonServer) -> int:
    """How many requests the pipeline's model has taken and ended, cancellations of others among them."""
    with urllib.request.urlopen(f"http://{server.http_url}/v2/models/{PIPELINE}/stats", timeout=10) as reply:
        count: int = json.load(reply)["model_stats"][0]["inference_stats"]["success"]["count"]
    return count


def test_what_is_read_to_its_end_asks_nothing_more(noop_server: TritonServer) -> None:
    """Nor does what ended with an error."""

    async def ask() -> None:
        async with AsyncOmniClient(noop_server.grpc_url, PIPELINE) as client:
            assert (await client.chat("x")).text
            with pytest.raises(InvalidRequest):
                await client.chat()

    metrics.wait_empty(noop_server, PIPELINE)
    before = asked(noop_server)
    asyncio.run(ask())
    with OmniClient(noop_server.grpc_url, PIPELINE) as client:
        assert client.chat("x").text
        with pytest.raises(InvalidRequest):
            client.chat()
    metrics.wait_empty(noop_server, PIPELINE)
    assert asked(noop_server) == before + 4


def test_clients_leave_by_the_key_of_their_request(noop_server: TritonServer) -> None:
    """And not by breaking a call off, of which the server would know nothing but its end."""

    async def leave() -> None:
        async with AsyncOmniClient(noop_server.grpc_url, PIPELINE) as client:
            await anext(events := client.stream("x", sampling=LONG))
            await events.aclose()
        client = AsyncOmniClient(noop_server.grpc_url, PIPELINE)
        task = asyncio.ensure_future(client.chat("x", sampling=LONG))
        await asyncio.sleep(0.3)
        task.cancel()
        await client.close()  # at once
        assert task.cancelled()

    metrics.wait_empty(noop_server, PIPELINE)
    before, aborted = asked(noop_server), metrics.aborted(noop_server, PIPELINE)
    asyncio.run(leave())
    with OmniClient(noop_server.grpc_url, PIPELINE) as blocking:
        next(blocking.stream("x", sampling=LONG))
    metrics.wait_left(noop_server, PIPELINE, aborted + 3)
    assert asked(noop_server) == before + 6  # three requests, and what ended each


def test_a_key_comes_as_a_parameter_alone(noop_server: TritonServer) -> None:
    """One among the sampling parameters would take the place of the client's own, by which it leaves."""
    with OmniClient(noop_server.grpc_url, PIPELINE) as client, pytest.raises(InvalidRequest, match="cancel_key"):
        client.chat("x", sampling={"cancel_key": new_key()})


def test_a_client_that_is_closed_tells_its_readers(noop_server: TritonServer) -> None:
    metrics.wait_empty(noop_server, PIPELINE)
    before = metrics.aborted(noop_server, PIPELINE)
    client = OmniClient(noop_server.grpc_url, PIPELINE)
    events = client.stream("x", sampling=LONG)
    next(events)
    client.close()
    with pytest.raises(ConnectionLost, match="the client was closed"):
        list(events)
    metrics.wait_left(noop_server, PIPELINE, before + 1)


def test_leaving_at_the_last_moment_is_no_cancellation(noop_server: TritonServer) -> None:
    """And closing the client then takes no time."""

    async def ask() -> float:
        async with AsyncOmniClient(noop_server.grpc_url, PIPELINE) as client:
            events = client.stream("x", sampling={"chunks": 1, "chunk_bytes": 8})
            assert [await anext(events), await anext(events)] == [TextDelta("x" * 8), TextDelta('{"chunks":1}')]
            await asyncio.sleep(0.1)
            await events.aclose()
            return time.monotonic()

    before = metrics.aborted(noop_server, PIPELINE)
    left = asyncio.run(ask())
    assert time.monotonic() - left < LEAVE_S / 2
    with OmniClient(noop_server.grpc_url, PIPELINE) as client:
        events = client.stream("x", sampling={"chunks": 1, "chunk_bytes": 8})
        assert isinstance(next(events), TextDelta) and isinstance(next(events), TextDelta)
        time.sleep(0.1)
        events.close()
        left = time.monotonic()
    assert time.monotonic() - left < LEAVE_S / 2
    metrics.wait_empty(noop_server, PIPELINE)
    assert metrics.aborted(noop_server, PIPELINE) == before


def test_a_request_that_is_left_before_it_has_answered(noop_server: TritonServer) -> None:
    async def ask() -> None:
        async with AsyncOmniClient(noop_server.grpc_url, "noop_line") as client:
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.3):
                    async for _ in client.stream("x", sampling={"delay": 2.0}):
                        pass

    metrics.wait_empty(noop_server, "noop_line")
    before = metrics.aborted(noop_server, "noop_line")
    asyncio.run(ask())
    metrics.wait_left(noop_server, "noop_line", before + 1)


WITH_A_LOOP = """
import asyncio, sys
from omni_python.client import AsyncOmniClient
async def main():
    global events
    client = AsyncOmniClient(sys.argv[1], sys.argv[2])
    events = client.stream("x", sampling={"chunks": 200_000, "chunk_bytes": 8})
    await anext(events)
asyncio.run(main())
"""
LEFT_BY_BREAK = WITH_A_LOOP.replace("await anext(events)", "async for _ in events: break")
WITHOUT = """
import sys
from omni_python.client import OmniClient
client = OmniClient(sys.argv[1], sys.argv[2])
events = client.stream("x", sampling={"chunks": 200_000, "chunk_bytes": 8})
next(events)
"""

IN_A_DAEMON = """
import sys, threading
from omni_python.client import OmniClient
client = OmniClient(sys.argv[1], sys.argv[2])
begun = threading.Event()
def read():
    for event in client.stream("x", sampling={"chunks": 200_000, "chunk_bytes": 8}):
        begun.set()
threading.Thread(target=read, daemon=True).start()
begun.wait()
"""
AFTER_ITS_END = WITHOUT.replace("import sys", "import atexit, sys") + "atexit.register(events.close)\n"
PROGRAMS = {
    "blocking": WITHOUT,
    "loop": WITH_A_LOOP,
    "break": LEFT_BY_BREAK,
    "daemon": IN_A_DAEMON,
    "atexit": AFTER_ITS_END,
}


@pytest.mark.parametrize("program", PROGRAMS.values(), ids=PROGRAMS)
def test_a_program_that_closes_nothing_ends_as_usual(noop_server: TritonServer, program: str) -> None:
    metrics.wait_empty(noop_server, PIPELINE)
    before = metrics.aborted(noop_server, PIPELINE)
    command = [sys.executable, "-c", program, noop_server.grpc_url, PIPELINE]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "", "")
    metrics.wait_left(noop_server, PIPELINE, before + 1)


READING = """
import sys
from omni_python.client import OmniClient
with OmniClient(sys.argv[1], sys.argv[2]) as client:
    try:
        for event in client.stream("x", sampling={"chunks": 200_000, "chunk_bytes": 8}):
            print("reading", flush=True)
    except KeyboardInterrupt:
        print("interrupted")
"""


def test_a_read_that_is_interrupted(noop_server: TritonServer) -> None:
    metrics.wait_empty(noop_server, PIPELINE)
    before = metrics.aborted(noop_server, PIPELINE)
    command = [sys.executable, "-c", READING, noop_server.grpc_url, PIPELINE]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as reader:
        assert reader.stdout is not None and reader.stdout.readline() == "reading\n"
        reader.send_signal(signal.SIGINT)
        said, errors = reader.communicate(timeout=60)
    assert (reader.returncode, said.splitlines()[-1], errors) == (0, "interrupted", "")
    metrics.wait_left(noop_server, PIPELINE, before + 1)


def test_a_server_that_says_nothing_is_left_after_a_while() -> None:
    async def ask(port: int) -> float:
        client = AsyncOmniClient(f"127.0.0.1:{port}", "noop_line")
        task = asyncio.ensure_future(client.chat("x"))
        await asyncio.sleep(0.3)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        start = time.monotonic()
        await client.close()
        return time.monotonic() - start

    with socket.create_server(("127.0.0.1", 0)) as silent:
        assert asyncio.run(ask(silent.getsockname()[1])) < 2 * LEAVE_S + 1
