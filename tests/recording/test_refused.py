"""Refused replays leave nothing in the server: a request that it kept would keep its model loaded."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from omni_python.client import InvalidRequest, replay
from omni_python.config.compile import compile_pipeline
from omni_python.models.noop.config import NoopLinePipelineConfig
from omni_python.proto.recording import ALLOW_REPLAY
from omni_python.serve.server_options import ServerOptions
from omni_python.serve.triton_server import TritonServer

EXIT_TIMEOUT = 30
REPLAYS = 300
"""Of which Triton 24.10 keeps some one or two where their client leaves at the last response."""


def test_a_server_stops_at_once_after_refused_replays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ALLOW_REPLAY, "1")
    compile_pipeline(NoopLinePipelineConfig(), tmp_path)
    server = TritonServer.start(ServerOptions(model_repository=tmp_path, exit_timeout_s=EXIT_TIMEOUT), timeout_s=100)
    with server:
        refusals = 0
        for _ in range(REPLAYS):
            try:
                replay(server.grpc_url, b"\0", "noop_line_b")
            except InvalidRequest:  # which pytest.raises would keep, and the call along with it
                refusals += 1
        assert refusals == REPLAYS
        asked = time.monotonic()
    assert time.monotonic() - asked < EXIT_TIMEOUT - 5, "a model was kept"
