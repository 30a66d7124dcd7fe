"""Servers that tests share. A folder uses one by importing its fixture in its conftest."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from omni_python.config.compile import compile_pipeline
from omni_python.models.noop.config import NoopForwardPipelineConfig, NoopLinePipelineConfig
from omni_python.serve.triton_server import ServerOptions, TritonServer


@pytest.fixture(scope="session")
def noop_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TritonServer]:
    """A real tritonserver with `noop_line` and `noop_forward`, which stream text, fail or wait as asked."""
    repository = tmp_path_factory.mktemp("noop")
    for config in (NoopLinePipelineConfig(), NoopForwardPipelineConfig()):
        compile_pipeline(config, repository)
    with TritonServer.start(ServerOptions(model_repository=repository, exit_timeout_s=5), timeout_s=100) as server:
        yield server
