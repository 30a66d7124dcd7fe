"""Connections on which no request comes, and connections that are too many."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, suppress
from typing import Annotated

import pytest
from fastapi import FastAPI, Request, WebSocket
from fastapi.responses import JSONResponse, Response, StreamingResponse
from pydantic import BaseModel
from websockets.sync.client import connect

from omni_python.serve.openai import bodies, bounds
from omni_python.serve.openai.bodies import json_body
from omni_python.serve.openai.errors import ApiError
from omni_python.serve.openai.server import HttpServer
from tests.waiting import wait_until

PATIENCE = 4.0
SLOW = 6.0


LARGE = 32 << 20
"""Bytes; more than the kernel keeps for a client that does not read."""


class Body(BaseModel):
    text: str


async def zeros() -> AsyncIterator[bytes]:
    while True:
        yield bytes(1 << 16)
        await asyncio.sleep(0)  # nothing that is sent to a client that has left waits


@pytest.fixture
def front(monkeypatch: pytest.MonkeyPatch) -> Iterator[HttpServer]:
    monkeypatch.setattr(bounds, "REQUEST_S", PATIENCE)
    monkeypatch.setattr(bounds, "_MOST", 4)
    app = FastAPI()

    @app.exception_handler(ApiError)
    async def refuse(request: Request, error: ApiError) -> JSONResponse:
        return JSONResponse(error.body, error.status)

    @app.get("/quick")
    async def quick() -> str:
        monkeypatch.setattr(bounds, "REQUEST_S", 0.1)
        return "here"

    @app.get("/slow")
    async def slow() -> str:
        await asyncio.sleep(SLOW)
        return "here"

    @app.get("/large")
    async def large() -> Response:
        monkeypatch.setattr(bounds, "SEND_S", 0.5)
        return Response(bytes(LARGE), headers={"Connection": "close"})

    @app.get("/endless")
    async def endless() -> StreamingResponse:
        monkeypatch.setattr(bounds, "SEND_S", 0.5)
        return StreamingResponse(zeros())

    @app.post("/echo")
    async def echoed(body: Annotated[Body, json_body(Body)]) -> str:
        return body.text

    @app.websocket("/socket")
    async def echo(socket: WebSocket) -> None:
        await socket.accept()
        await socket.send_text(await socket.receive_text())

    @app.websocket("/flood")
    async def flood(socket: WebSocket, seconds: float) -> None:
        monkeypatch.setattr(bounds, "SEND_S", 0.5)
        await socket.accept()
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while True:
                    await socket.send_bytes(bytes(1 << 16))

    with HttpServer(app) as front:
        yield front


def opened(front: HttpServer) -> socket.socket:
    return socket.create_connection((front.host, front.port), timeout=30)


def head(path: str) -> bytes:
    return f"GET {path} HTTP/1.1\r\nHost: here\r\n\r\n".encode()


def read_all(connection: socket.socket, end: bytes = b"never") -> bytes:
    """What comes up to the connection's end, or to this."""
    data = b""
    try:
        while end not in data and (piece := connection.recv(4096)):
            data += piece
    except ConnectionResetError:
        pass
    return data


@pytest.mark.parametrize("begun", [b"", head("/slow")[:-2]], ids=["nothing", "half a request"])
def test_a_connection_on_which_no_request_comes_is_closed(front: HttpServer, begun: bytes) -> None:
    with opened(front) as first, opened(front) as later:
        later.sendall(head("/quick") + begun)
        answer = read_all(later)
        assert answer.startswith(b"HTTP/1.1 200") and answer.endswith(b'"here"')
        first.sendall(begun)
        assert read_all(first) == b""


def test_an_answer_may_take_longer_and_a_websocket_be_silent(front: HttpServer) -> None:
    with opened(front) as asking:
        asking.sendall(head("/slow"))
        with connect(f"ws://{front.host}:{front.port}/socket", proxy=None) as websocket:
            assert read_all(asking, b'"here"').startswith(b"HTTP/1.1 200")
            websocket.send("still here")
            assert websocket.recv(timeout=30) == "still here"


def test_connections_that_are_too_many_are_refused(front: HttpServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounds, "REQUEST_S", 60.0)
    with ExitStack() as opening:
        connections = [opening.enter_context(opened(front)) for _ in range(9)]
        assert read_all(connections[8]) == b""
        connections[7].sendall(head("/quick"))
        assert read_all(connections[7]).startswith(b"HTTP/1.1 503")


@pytest.mark.parametrize("path", ["/large", "/endless"])
def test_a_client_that_does_not_read_its_answer_is_gone(front: HttpServer, path: str) -> None:
    """Where the answer is complete, and where more of it would come."""
    connections = front._server.server_state.connections
    with opened(front) as asking:
        asking.sendall(head(path))
        wait_until(lambda: connections)
        wait_until(lambda: not connections)


@pytest.mark.parametrize("seconds", [0.1, 60])
def test_a_websocket_whose_client_does_not_read_is_gone(front: HttpServer, seconds: float) -> None:
    """Whether the application is done with it, or still has something to send."""
    connections = front._server.server_state.connections
    url = f"ws://{front.host}:{front.port}/flood?seconds={seconds}"
    with connect(url, proxy=None, max_queue=1, ping_interval=None, close_timeout=1):
        wait_until(lambda: connections)
        wait_until(lambda: not connections)


def test_a_client_that_reads_slowly_gets_all_of_its_answer(front: HttpServer) -> None:
    """It takes longer than `SEND_S`, in which it must read something."""
    with opened(front) as asking:
        asking.sendall(head("/large"))
        received = 0
        while piece := asking.recv(LARGE // 40, socket.MSG_WAITALL):
            received += len(piece)
            time.sleep(0.05)
    assert received > LARGE


def test_a_body_that_does_not_come_is_not_waited_for(front: HttpServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bodies, "BODY_S", 1.0)
    monkeypatch.setattr(bodies, "BODY_RATE", 1000)
    begun = b"POST /echo HTTP/1.1\r\nHost: here\r\nContent-Type: application/json\r\nContent-Length: 5000\r\n\r\n"
    with opened(front) as silent, opened(front) as slow, opened(front) as dripping:
        for connection in (silent, slow, dripping):
            connection.sendall(begun)
        slow.sendall(b'{"text":"' + b"x" * 4000)
        for _ in range(15):
            time.sleep(0.1)
            with suppress(ConnectionError):
                dripping.sendall(b" ")
        slow.sendall(b"x" * 989 + b'"}')
        assert b'"' + b"x" * 4989 + b'"' in read_all(slow, b'x"')
        for connection in (silent, dripping):
            assert b"HTTP/1.1 408" in read_all(connection)
