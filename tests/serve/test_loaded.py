"""When a server counts as started whose readiness asks its models, as Triton's does from 26.04 on: an HTTP server that
answers as that one does (`HTTPAPIServer::HandleServerHealth` and `HandleRepositoryIndex`) stands for it."""

from __future__ import annotations

import json
import subprocess
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from omni_python.serve.triton_server import TritonServer

READY = {"name": "a", "version": "1", "state": "READY"}


class Handler(BaseHTTPRequestHandler):
    index: list[dict[str, str]] | None = None
    """None where it is restricted."""
    health = 400

    def do_GET(self) -> None:
        if self.path == "/v2/health/ready":
            self._reply(self.health)
        else:
            self._reply(200, json.dumps({"name": "here"}))

    def do_POST(self) -> None:
        if self.index is None:
            self._reply(403)
        else:
            self._reply(200, json.dumps(self.index))

    def _reply(self, status: int, text: str = "") -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def started(tmp_path: Path) -> Iterator[tuple[TritonServer, type[Handler]]]:
    """The server, and what it answers."""

    class Own(Handler):
        pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Own) as http, subprocess.Popen(["sleep", "100"]) as process:
        threading.Thread(target=http.serve_forever, daemon=True).start()
        port = http.server_address[1]
        server = TritonServer("127.0.0.1", port, port, port, process, tmp_path / "log", "here", 1, 1, tmp_path)
        try:
            yield server, Own
        finally:
            process.kill()
            http.shutdown()


@pytest.mark.parametrize(
    ("others", "loaded"),
    [
        ([], True),
        ([{"name": "b", "version": "1", "state": "LOADING"}], False),
        ([{"name": "b", "version": "1", "state": "UNAVAILABLE", "reason": "no weights"}], False),
        ([{"name": "b", "version": "1", "state": "UNAVAILABLE", "reason": "unloaded"}], True),
        ([{"name": "b"}], True),
    ],
    ids=["all", "loading", "failed", "unloaded", "not-asked-for"],
)
def test_a_server_whose_models_do_not_serve_yet_has_loaded_them(
    started: tuple[TritonServer, type[Handler]], others: list[dict[str, str]], loaded: bool
) -> None:
    server, answers = started
    answers.index = [READY, *others]
    assert not server.is_ready() and server.has_loaded() == loaded


def test_where_no_index_is_given_readiness_decides(started: tuple[TritonServer, type[Handler]]) -> None:
    server, answers = started
    assert not server.has_loaded()
    answers.health = 200
    assert server.has_loaded()
