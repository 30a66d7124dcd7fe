"""Clients that connect to the HTTP front and say nothing: the supervisor, in the same process, must not notice."""

from __future__ import annotations

import socket
import time
from contextlib import ExitStack, suppress
from pathlib import Path

import httpx

from omni_python.config.compile import compile_pipeline
from omni_python.models.noop.config import NoopLinePipelineConfig
from tests.faults.serving import Serving, lasting_ports
from tests.faults.test_supervisor import ask
from tests.waiting import wait_until

FILES = 256


def test_a_server_outlives_more_idle_connections_than_it_has_descriptors(tmp_path: Path) -> None:
    compile_pipeline(NoopLinePipelineConfig(), tmp_path / "models")
    [port] = lasting_ports(1)
    serving = Serving(tmp_path / "models", tmp_path / "log", (f"--openai-port={port}",), file_limit=FILES)
    with serving, ExitStack() as idle, httpx.Client(base_url=f"http://127.0.0.1:{port}", trust_env=False) as http:
        family = serving.family()
        for _ in range(2 * FILES):
            with suppress(OSError):  # closed already
                idle.enter_context(socket.create_connection(("127.0.0.1", port), timeout=5))
        time.sleep(3)  # the supervisor looks eight times a second
        assert ask(serving, nbytes=3).text == '{"nbytes":3,"last":2}'
        assert serving.process.poll() is None and serving.family() == family, serving.said()[-3000:]

        def serves_again() -> bool:
            with suppress(httpx.TransportError):
                return http.get("/health").status_code == 200
            return False

        wait_until(serves_again, timeout=60, period=0.5)
        assert serving.said().count("omni serve: ready") == 1
