"""The OpenAI-compatible server in front of a real tritonserver, and the official SDK that talks to it."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import openai
import pytest

from omni_python.serve.openai.app import create_app
from omni_python.serve.openai.server import HttpServer
from omni_python.serve.triton_server import TritonServer
from tests.e2e.conftest import checkpoint, server
from tests.serve.openai.realtime import aborted, connection, question, realtime

__all__ = ["aborted", "checkpoint", "connection", "question", "realtime", "server"]


@pytest.fixture(scope="session")
def api(server: TritonServer) -> Iterator[HttpServer]:
    app = create_app(server.grpc_url, f"{server.host}:{server.metrics_port}")
    with HttpServer(app) as api:
        yield api


@pytest.fixture
def sdk(api: HttpServer) -> Iterator[openai.OpenAI]:
    http = httpx.Client(trust_env=False)
    with openai.OpenAI(base_url=f"{api.url}/v1", api_key="none", max_retries=0, http_client=http) as client:
        yield client


@pytest.fixture
def http(api: HttpServer) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=api.url, trust_env=False, timeout=60) as client:
        yield client
