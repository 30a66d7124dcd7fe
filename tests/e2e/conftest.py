"""A real tritonserver with the Qwen3-Omni pipelines on the tiny checkpoint, shared by all tests of this folder."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from omni_python.client import OmniClient
from omni_python.config.compile import compile_pipeline
from omni_python.models.qwen3_omni.config import Qwen3OmniSpeechPipelineConfig, Qwen3OmniTextPipelineConfig
from omni_python.models.qwen3_omni.tiny import build
from omni_python.serve.triton_server import ServerOptions, TritonServer


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("checkpoint") / "tiny"
    build(path)
    return path


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory, checkpoint: Path) -> Iterator[TritonServer]:
    """Serves `qwen3_omni` and `qwen3_omni_text`."""
    repository = tmp_path_factory.mktemp("models")
    compile_pipeline(Qwen3OmniSpeechPipelineConfig(model_path=str(checkpoint)), repository)
    compile_pipeline(Qwen3OmniTextPipelineConfig(model_path=str(checkpoint)), repository)
    with TritonServer.start(ServerOptions(model_repository=repository), timeout_s=120) as server:
        yield server


@pytest.fixture
def client(server: TritonServer) -> Iterator[OmniClient]:
    with OmniClient(server.grpc_url, "qwen3_omni") as client:
        yield client


@pytest.fixture
def text_client(server: TritonServer) -> Iterator[OmniClient]:
    with OmniClient(server.grpc_url, "qwen3_omni_text") as client:
        yield client
