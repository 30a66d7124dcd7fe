"""A model that is loaded again because a file of its has changed: its new process serves before the old one has ended,
and both have metrics of the same names and labels."""

from __future__ import annotations

from pathlib import Path

import tritonclient.grpc as triton

from omni_python.client import OmniClient
from omni_python.config.compile import compile_pipeline
from omni_python.models.noop.config import NoopLinePipelineConfig
from omni_python.serve.server_options import ServerOptions
from omni_python.serve.triton_server import TritonServer
from tests.e2e import metrics
from tests.waiting import wait_until

MODEL = "noop_line_b"


def test_its_metrics_go_on_and_the_server_lives(tmp_path: Path) -> None:
    compile_pipeline(NoopLinePipelineConfig(), tmp_path)
    options = ServerOptions(model_repository=tmp_path)
    with (
        TritonServer.start(options, timeout_s=100) as server,
        OmniClient(server.grpc_url, "noop_line") as client,
        triton.InferenceServerClient(server.grpc_url) as control,
    ):
        for number in range(1, 4):
            client.chat("x", sampling={"nbytes": 10})
            wait_until(lambda: _computed(server) == 1, 20)
            (tmp_path / MODEL / "1" / "changed").write_text(str(number))
            control.load_model(MODEL)
            wait_until(lambda: _computed(server) == 0, 20)
        client.chat("x", sampling={"nbytes": 10})
        wait_until(lambda: _computed(server) == 1, 20)


def _computed(server: TritonServer) -> float:
    """Requests that stage b has had since its process began."""
    return metrics.read(server, "omni_stage_requests_total", stage="b")
