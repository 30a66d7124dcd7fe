"""Servers that all tests of a session share: `tests/conftest.py` has these fixtures for every folder."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from omni_python.config.compile import compile_pipeline
from omni_python.models.noop.config import NoopForwardPipelineConfig, NoopLinePipelineConfig
from omni_python.models.qwen3_omni.config import Qwen3OmniSpeechPipelineConfig, Qwen3OmniTextPipelineConfig
from omni_python.proto.recording import ALLOW_REPLAY, RECORD_DIRECTORY
from omni_python.serve.server_options import ServerOptions
from omni_python.serve.triton_server import TritonServer


@pytest.fixture(scope="session")
def noop_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TritonServer]:
    """A real tritonserver with `noop_line` and `noop_forward`, which stream text, fail or wait as asked."""
    repository = tmp_path_factory.mktemp("noop")
    for config in (NoopLinePipelineConfig(), NoopForwardPipelineConfig()):
        compile_pipeline(config, repository)
    with TritonServer.start(ServerOptions(model_repository=repository, exit_timeout_s=5), timeout_s=100) as server:
        yield server
        check_alive(server)


@pytest.fixture(scope="session")
def tiny_checkpoint() -> Path:
    """The tiny checkpoint of Qwen3-Omni that the oracle's cases were recorded with."""
    from tests.models import tiny_model  # torch, which few folders need

    return tiny_model.checkpoint()


@pytest.fixture(scope="session")
def tiny_server(tmp_path_factory: pytest.TempPathFactory, tiny_checkpoint: Path) -> Iterator[TritonServer]:
    """A real tritonserver with `qwen3_omni` and `qwen3_omni_text` on the tiny checkpoint, which records and replays."""
    repository = tmp_path_factory.mktemp("tiny")
    for config in (Qwen3OmniSpeechPipelineConfig, Qwen3OmniTextPipelineConfig):
        compile_pipeline(config(model_path=str(tiny_checkpoint)), repository)
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv(RECORD_DIRECTORY, str(tmp_path_factory.mktemp("recordings")))
        environment.setenv(ALLOW_REPLAY, "1")
        server = TritonServer.start(ServerOptions(model_repository=repository), timeout_s=120)
    with server:
        yield server
        check_alive(server)


def check_alive(server: TritonServer) -> None:
    """The tests before may have failed since their server died: its log says why."""
    if server.has_exited():
        log = "" if server.log is None else server.log.read_text(errors="replace")
        raise AssertionError(
            f"the server died by itself ({server.process.returncode}); the end of its log:\n{log[-6000:]}"
        )
