"""The asyncio client against a real tritonserver."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable
from typing import TypeVar

import pytest

from omni_python.client import (
    AsyncOmniClient,
    ConnectionLost,
    Finished,
    InvalidRequest,
    ServerUnreachable,
    TextDelta,
    UnknownPipeline,
)
from omni_python.serve.triton_server import TritonServer
from tests.client.connections import Cable
from tests.client.deltas import told
from tests.e2e import metrics

T = TypeVar("T")

LONG = {"chunks": 200_000, "chunk_bytes": 8}


def run(url: str, pipeline: str, work: Callable[[AsyncOmniClient], Awaitable[T]]) -> T:
    async def main() -> T:
        async with AsyncOmniClient(url, pipeline) as client:
            return await work(client)

    return asyncio.run(main())


def test_events_and_answers_are_those_of_the_blocking_client(noop_server: TritonServer) -> None:
    async def work(client: AsyncOmniClient) -> None:
        assert await client.is_ready()
        assert await client.pipelines() == ["noop_forward", "noop_line"]
        *deltas, last, end = [event async for event in client.stream("x", sampling={"chunks": 300, "chunk_bytes": 5})]
        assert told(deltas) == "xxxxx" * 300 and last == TextDelta('{"chunks":300}')
        assert isinstance(end, Finished) and end.finish_reason == "stop"
        answers = await asyncio.gather(*(client.chat("x", sampling={"chunks": n, "chunk_bytes": 3}) for n in range(16)))
        assert [answer.text for answer in answers] == ["xxx" * n + f'{{"chunks":{n}}}' for n in range(16)]

    run(noop_server.grpc_url, "noop_forward", work)


@pytest.mark.parametrize("leave", ["aclose", "cancel"])
def test_leaving_cancels_the_request(noop_server: TritonServer, leave: str) -> None:
    async def work(client: AsyncOmniClient) -> None:
        events = client.stream("x", sampling=LONG)
        assert told([await anext(events)]).startswith("x" * 8)
        if leave == "aclose":
            await events.aclose()
            return
        task = asyncio.ensure_future(_drain(events))
        await asyncio.sleep(0.05)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    metrics.wait_empty(noop_server, "noop_forward")
    before = metrics.aborted(noop_server, "noop_forward")
    run(noop_server.grpc_url, "noop_forward", work)
    metrics.wait_left(noop_server, "noop_forward", before + 1)


async def _drain(events: object) -> None:
    async for _ in events:  # type: ignore[attr-defined]
        pass


def test_errors(noop_server: TritonServer) -> None:
    async def work(client: AsyncOmniClient) -> None:
        with pytest.raises(InvalidRequest, match="the prompt is empty"):
            await client.chat()
        with pytest.raises(TypeError, match="unknown option 'warmth'"):
            await client.chat("x", warmth=1)  # type: ignore[call-arg]

    async def unknown(client: AsyncOmniClient) -> None:
        assert not await client.is_ready()
        with pytest.raises(UnknownPipeline, match="qwen4_omni.*ready at .*: noop_forward, noop_line$"):
            await client.chat("x")

    async def nobody(client: AsyncOmniClient) -> None:
        assert not await client.is_ready()
        with pytest.raises(ServerUnreachable, match="127.0.0.1"):
            await client.chat("x")
        with pytest.raises(ServerUnreachable, match="127.0.0.1"):
            await client.pipelines()

    run(noop_server.grpc_url, "noop_line", work)
    run(noop_server.grpc_url, "qwen4_omni", unknown)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    run(f"127.0.0.1:{port}", "noop_line", nobody)


def test_connection_cut_in_the_middle(noop_server: TritonServer) -> None:
    before = metrics.aborted(noop_server, "noop_forward")
    with Cable(noop_server.host, noop_server.grpc_port) as cable:

        async def work(client: AsyncOmniClient) -> None:
            events = client.stream("x", sampling=LONG)
            await anext(events)
            cable.cut()
            with pytest.raises(ConnectionLost, match=cable.url):
                await _drain(events)

        run(cable.url, "noop_forward", work)
    metrics.wait_left(noop_server, "noop_forward", before + 1)
