"""Triton's streaming inference call for asyncio."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from typing import Any

import grpc
import grpc.aio
import numpy as np
from tritonclient.grpc import service_pb2, service_pb2_grpc

from omni_python.client import _protocol, _regions
from omni_python.client._errors import RequestFailed, Unavailable
from omni_python.client._leaving import AsyncLeaving, new_key
from omni_python.client._regions import InputTensor, Region, SharedMemory
from omni_python.client._watch import Look, Watched


class AsyncTransport:
    """A channel to one server, of one event loop; any number of calls at once."""

    def __init__(self, url: str, shared_memory: SharedMemory | None = None) -> None:
        """As `Transport`."""
        self.url = url
        self._shared_memory = shared_memory
        self._channel = grpc.aio.insecure_channel(url, options=_protocol.channel_options(url))
        self._stub = service_pb2_grpc.GRPCInferenceServiceStub(self._channel)
        self._leaving = AsyncLeaving(self._stub)
        self._closed = False

    async def close(self) -> None:
        try:
            await self._leaving.wait()
        finally:
            self._closed = True
            await self._channel.close()

    async def is_ready(self, model: str) -> bool:
        """Whether the model is ready; False also where no server answers."""
        try:
            reply = await self._stub.ModelReady(service_pb2.ModelReadyRequest(name=model), timeout=_protocol.LOOK_UP_S)
        except grpc.RpcError:
            return False
        return bool(reply.ready)

    @contextlib.asynccontextmanager
    async def _sharing(self, inputs: Mapping[str, np.ndarray]) -> AsyncIterator[Mapping[str, InputTensor]]:
        """The inputs, the large ones in shared memory where that was asked for, until the end of the block."""
        tensors, region = _regions.shared(inputs, self._shared_memory)
        if region is None:
            yield tensors
            return
        try:
            try:
                await _regions.register(self._stub, region)
            except grpc.RpcError as error:
                raise _protocol.region_refusal(error, self.url, await self._is_alive()) from None
            region.hide()
            yield tensors
        finally:
            region.hide()  # before: a registration that is still on its way then fails
            # A second cancellation would end an await of this task alone.
            await asyncio.shield(asyncio.ensure_future(self._unshare(region)))

    async def _unshare(self, region: Region) -> None:
        try:
            await self._unregister(region)
        finally:
            region.close()

    async def _unregister(self, region: Region) -> None:
        # A channel of its own: the client may have been closed while the answer came.
        async with grpc.aio.insecure_channel(self.url, options=_protocol.channel_options(self.url)) as channel:
            stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
            for wait in _regions.waits():
                try:
                    await _regions.unregister(stub, region)
                    return
                except grpc.RpcError as error:
                    if error.code() == grpc.StatusCode.UNAVAILABLE:  # a dead server holds nothing
                        return
                await asyncio.sleep(wait)

    async def infer(
        self, model: str, inputs: Mapping[str, np.ndarray], limit: float | None = None
    ) -> AsyncGenerator[dict[str, np.ndarray], None]:
        """As `Transport.infer`."""
        async with (
            self._sharing(inputs) as tensors,
            contextlib.aclosing(self._infer(model, tensors, limit)) as responses,
        ):
            async for outputs in responses:
                yield outputs

    async def _infer(
        self, model: str, inputs: Mapping[str, InputTensor], limit: float | None
    ) -> AsyncGenerator[dict[str, np.ndarray], None]:
        key = new_key()
        request = _protocol.infer_request(model, inputs, key)
        call = self._stub.ModelStreamInfer(iter((request,)), timeout=limit)
        watched = Watched(model, call)
        watching = asyncio.ensure_future(self._watch(watched))
        answered = False
        refused = ""
        reading: asyncio.Future[Any] | None = None
        try:
            # Shielded: a read that is cancelled breaks its call off.
            while (reply := await asyncio.shield(reading := asyncio.ensure_future(call.read()))) is not grpc.aio.EOF:
                reading = None
                watched.hear()
                if reply.error_message:
                    refused = reply.error_message.rstrip(". ")
                    continue
                answered = True
                yield _protocol.infer_outputs(reply.infer_response)
            if refused:
                raise _protocol.refusal(refused) or await self._refusal(model, refused)
        except asyncio.CancelledError:
            if watched.reason:
                raise Unavailable(watched.reason) from None
            raise
        except grpc.RpcError as error:
            ended = _protocol.ended_here(error, watched, limit, self._closed)
            raise ended or _protocol.failure(error, self.url, answered, await self._is_alive()) from None
        finally:
            watching.cancel()
            if not call.done():
                self._leaving.leave(call, model, key, reading)

    async def _watch(self, watched: Watched) -> None:
        while not watched.reason:
            await asyncio.sleep(max(0.0, watched.due - time.monotonic()))
            if watched.due <= time.monotonic():
                look = asyncio.ensure_future(self._look(watched.model))
                self._leaving.see_through(look)  # where this task is cancelled: to cancel a look breaks its call off
                watched.judge(await asyncio.shield(look))

    async def _look(self, model: str) -> Look:
        asked = time.monotonic()
        call = self._stub.ModelStreamInfer(iter((_protocol.age_request(model),)), timeout=_protocol.LOOK_UP_S)
        try:
            return _protocol.look(asked, [reply async for reply in call])
        except grpc.RpcError:
            return Look(asked)

    async def pipelines(self) -> list[str]:
        """The pipelines that are ready, sorted. Raises `ServerUnreachable`."""
        try:
            return await self._ready_pipelines()
        except grpc.RpcError as error:
            raise _protocol.failure(error, self.url, answered=False, alive=False) from None

    async def _is_alive(self) -> bool:
        try:
            await self._stub.ServerLive(service_pb2.ServerLiveRequest(), timeout=_protocol.LOOK_UP_S)
        except grpc.RpcError:
            return False
        return True

    async def _refusal(self, model: str, message: str) -> RequestFailed:
        """Requests that Triton refuses before a model sees them carry no code: is it the model that is missing?"""
        try:
            ready = await self._ready_pipelines()
        except grpc.RpcError:
            return RequestFailed(message)
        return RequestFailed(message) if model in ready else _protocol.unknown_pipeline(message, self.url, ready)

    async def _ready_pipelines(self) -> list[str]:
        request = service_pb2.RepositoryIndexRequest(ready=True)
        index = await self._stub.RepositoryIndex(request, timeout=_protocol.LOOK_UP_S)
        return sorted([model.name for model in index.models if await self._is_pipeline(model.name)])

    async def _is_pipeline(self, model: str) -> bool:
        """False also where the model was unloaded meanwhile."""
        request = service_pb2.ModelConfigRequest(name=model)
        try:
            reply = await self._stub.ModelConfig(request, timeout=_protocol.LOOK_UP_S)
        except grpc.RpcError as error:
            if error.code() != grpc.StatusCode.DEADLINE_EXCEEDED and await self._is_alive():
                return False
            raise
        return _protocol.is_pipeline(reply.config)
