"""Whose web pages may use the realtime API: browsers let any page open a WebSocket to any server."""

from __future__ import annotations

import json

import pytest
from websockets.exceptions import InvalidStatus
from websockets.sync.client import ClientConnection, connect

from omni_python.serve.openai.app import create_app
from omni_python.serve.openai.server import HttpServer
from tests.serve.openai.realtime import MODEL


def connected(front: HttpServer, origin: str | None) -> ClientConnection:
    return connect(f"ws://{front.host}:{front.port}/v1/realtime?model={MODEL}", origin=origin, proxy=None)  # type: ignore[arg-type]


@pytest.mark.parametrize("scheme", [None, "http", "https"])
def test_the_servers_own_pages_and_other_clients_may(api: HttpServer, scheme: str | None) -> None:
    """A proxy in front may speak TLS."""
    origin = None if scheme is None else f"{scheme}://{api.host}:{api.port}"
    with connected(api, origin) as connection:
        assert json.loads(connection.recv(timeout=60))["type"] == "session.created"


@pytest.mark.parametrize(
    "origin",
    [
        "https://evil.example",
        "http://{host}:1",
        "http://{host}",
        "http://{host}:{port}.evil.example",
        "null",
        "",
        "//[",
    ],
)
def test_other_pages_may_not(origin: str) -> None:
    with HttpServer(create_app("127.0.0.1:1")) as front:
        origin = origin.format(host=front.host, port=front.port)
        with pytest.raises(InvalidStatus) as refused, connected(front, origin):
            pass
    response = refused.value.response
    assert response.status_code == 403 and response.body is not None
    error = json.loads(response.body)["error"]
    assert error["code"] == "forbidden_origin" and f"{front.host}:{front.port}" in error["message"]
