"""A server whose operator wants no metrics serves as well."""

from __future__ import annotations

from pathlib import Path

import pytest

from omni_python.client import OmniClient
from omni_python.config.compile import compile_pipeline
from omni_python.models.noop.config import NoopLinePipelineConfig
from omni_python.serve.server_options import ServerOptions
from omni_python.serve.triton_server import TritonServer
from tests.e2e import metrics


def test_a_server_without_metrics(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compile_pipeline(NoopLinePipelineConfig(), tmp_path)
    monkeypatch.setenv("OMNI_METRICS", "0")
    with TritonServer.start(ServerOptions(model_repository=tmp_path), timeout_s=100) as server:
        with OmniClient(server.grpc_url, "noop_line") as client:
            assert client.chat("x", sampling={"nbytes": 10}).text == '{"nbytes":10,"last":9}'
        assert metrics.samples(server) == []
