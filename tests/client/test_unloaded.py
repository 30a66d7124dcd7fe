"""Models that are unloaded while the client looks for pipelines. A scripted service stands for Triton, since with a
real one there is but a moment for it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import pytest
from tritonclient.grpc import service_pb2, service_pb2_grpc

from omni_python.client import AsyncOmniClient, OmniClient, ServerUnreachable


class Triton(service_pb2_grpc.GRPCInferenceServiceServicer):
    """It has a pipeline, and forgets the other models of its index."""

    lives = True

    def RepositoryIndex(self, request: Any, context: grpc.ServicerContext) -> Any:
        reply = service_pb2.RepositoryIndexResponse()
        for name in ("gone", "here"):
            reply.models.add(name=name, state="READY")
        return reply

    def ModelConfig(self, request: Any, context: grpc.ServicerContext) -> Any:
        if request.name != "here":
            context.abort(grpc.StatusCode.UNAVAILABLE, f"Request for unknown model: '{request.name}' is not found")
        reply = service_pb2.ModelConfigResponse()
        reply.config.parameters["omni_role"].string_value = "orchestrator"
        return reply

    def ServerLive(self, request: Any, context: grpc.ServicerContext) -> Any:
        if not self.lives:
            context.abort(grpc.StatusCode.UNAVAILABLE, "")
        return service_pb2.ServerLiveResponse(live=True)


def ask(url: str) -> list[str]:
    with OmniClient(url) as client:
        return client.pipelines()


def ask_async(url: str) -> list[str]:
    async def ask() -> list[str]:
        async with AsyncOmniClient(url) as client:
            return await client.pipelines()

    return asyncio.run(ask())


@pytest.fixture
def triton() -> Iterator[tuple[Triton, str]]:
    triton = Triton()
    with ThreadPoolExecutor(4) as threads:
        server = grpc.server(threads)
        service_pb2_grpc.add_GRPCInferenceServiceServicer_to_server(triton, server)
        port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        yield triton, f"127.0.0.1:{port}"
        server.stop(None).wait()


@pytest.mark.parametrize("pipelines", [ask, ask_async])
def test_a_model_that_is_unloaded_meanwhile_is_left_out(
    triton: tuple[Triton, str], pipelines: Callable[[str], list[str]]
) -> None:
    service, url = triton
    assert pipelines(url) == ["here"]
    service.lives = False
    with pytest.raises(ServerUnreachable, match=f"no Triton server answers at {url}"):
        pipelines(url)
