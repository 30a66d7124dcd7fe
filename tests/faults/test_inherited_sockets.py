"""Connections of a server while a model's process is started again: it must not hold them too."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from omni_python.config.compile import compile_pipeline
from omni_python.models.noop.config import NoopLinePipelineConfig
from tests.faults.serving import Serving
from tests.faults.test_supervisor import wait_served
from tests.waiting import wait_until

PROBE = b"GET /v2/health/live HTTP/1.1\r\nHost: localhost\r\nConnection: %s\r\n\r\n"
STAGE = "noop_line_b"


@pytest.fixture
def serving(tmp_path: Path) -> Iterator[Serving]:
    compile_pipeline(NoopLinePipelineConfig(), tmp_path / "models")
    with Serving(tmp_path / "models", tmp_path / "log") as serving:
        yield serving


def sockets(process: psutil.Process) -> set[str]:
    """But for the standard streams, which are whatever the launcher made them."""
    found: set[str] = set()
    for path in Path(f"/proc/{process.pid}/fd").iterdir():
        with suppress(OSError):
            if int(path.name) > 2 and (target := os.readlink(path)).startswith("socket:"):
                found.add(target)
    return found


def test_a_restarted_stage_keeps_no_connection_open(serving: Serving) -> None:
    """Else a client whose connection the server closes never hears of it, nor can the port be taken again."""
    with socket.create_connection(("127.0.0.1", serving.ports[0]), timeout=10) as connection:
        connection.sendall(PROBE % b"keep-alive")
        assert connection.recv(1000).startswith(b"HTTP/1.1 200")
        old = serving.stub(STAGE)
        old.kill()
        wait_until(lambda: serving.stub(STAGE).pid != old.pid, 30)
        wait_served(serving)
        connection.sendall(PROBE % b"close")
        assert connection.recv(1000).startswith(b"HTTP/1.1 200")
        assert connection.recv(1000) == b""
    assert len(sockets(serving.server())) > 3
    assert not sockets(serving.server()) & sockets(serving.stub(STAGE))
