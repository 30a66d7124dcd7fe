"""Connections on which no request comes, and connections that are too many."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from fastapi import FastAPI, WebSocket
from websockets.sync.client import connect

from omni_python.serve.openai import bounds
from omni_python.serve.openai.server import HttpServer

PATIENCE = 4.0
SLOW = 6.0


@pytest.fixture
def front(monkeypatch: pytest.MonkeyPatch) -> Iterator[HttpServer]:
    monkeypatch.setattr(bounds, "REQUEST_S", PATIENCE)
    monkeypatch.setattr(bounds, "_MOST", 3)
    app = FastAPI()

    @app.get("/quick")
    async def quick() -> str:
        monkeypatch.setattr(bounds, "REQUEST_S", 0.1)
        return "here"

    @app.get("/slow")
    async def slow() -> str:
        await asyncio.sleep(SLOW)
        return "here"

    @app.websocket("/socket")
    async def echo(socket: WebSocket) -> None:
        await socket.accept()
        await socket.send_text(await socket.receive_text())

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
        connections = [opening.enter_context(opened(front)) for _ in range(7)]
        assert read_all(connections[6]) == b""
        connections[5].sendall(head("/quick"))
        assert read_all(connections[5]).startswith(b"HTTP/1.1 503")
