"""The Qwen3-Omni pipelines on the tiny checkpoint, behind a real tritonserver."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from omni_python.client import OmniClient
from omni_python.serve.triton_server import TritonServer


@pytest.fixture(scope="session")
def checkpoint(tiny_checkpoint: Path) -> Path:
    return tiny_checkpoint


@pytest.fixture(scope="session")
def server(tiny_server: TritonServer) -> TritonServer:
    return tiny_server


@pytest.fixture
def client(server: TritonServer) -> Iterator[OmniClient]:
    with OmniClient(server.grpc_url, "qwen3_omni") as client:
        yield client


@pytest.fixture
def text_client(server: TritonServer) -> Iterator[OmniClient]:
    with OmniClient(server.grpc_url, "qwen3_omni_text") as client:
        yield client
