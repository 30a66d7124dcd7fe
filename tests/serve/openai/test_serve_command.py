"""`omni serve --openai-port`: both servers by one command."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import httpx

from omni_python.config.compile import compile_pipeline
from omni_python.models.noop.config import NoopForwardPipelineConfig
from tests.faults.serving import lasting_ports


def test_both_servers_by_one_command(tmp_path: Path) -> None:
    compile_pipeline(NoopForwardPipelineConfig(), tmp_path)
    names = ("openai", "http", "grpc", "metrics")
    ports = dict(zip(names, lasting_ports(4), strict=True))
    command = [sys.executable, "-m", "omni_python.cli", "serve", f"--model-repository={tmp_path}"]
    options = [f"--{name}-port={port}" for name, port in ports.items()]
    process = subprocess.Popen([*command, *options], stdout=subprocess.DEVNULL)
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{ports['openai']}", trust_env=False, timeout=10) as http:
            _wait_healthy(http)
            body = {"model": "noop_forward", "messages": [{"role": "user", "content": "x"}]}
            reply = http.post("/v1/chat/completions", json=body)
            assert reply.json()["choices"][0]["message"]["content"] == '{"chunks":0}'
    finally:
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0


def _wait_healthy(http: httpx.Client) -> None:
    end = time.monotonic() + 90
    while time.monotonic() < end:
        try:
            if http.get("/health").status_code == 200:
                return
        except httpx.TransportError:
            pass
        time.sleep(0.5)
    raise AssertionError("not healthy in 90 s")
