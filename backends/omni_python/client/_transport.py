"""Triton's streaming inference call, blocking."""

from __future__ import annotations

import contextlib
import sys
import time
import weakref
from collections.abc import Generator, Iterator, Mapping

import grpc
import numpy as np
from tritonclient.grpc import service_pb2, service_pb2_grpc

from omni_python.client import _protocol, _regions
from omni_python.client._errors import RequestFailed
from omni_python.client._leaving import Leaving, new_key
from omni_python.client._regions import InputTensor, Region, SharedMemory
from omni_python.client._watch import Look, Watcher


class Transport:
    """A channel to one server; thread-safe, any number of calls at once."""

    def __init__(self, url: str, shared_memory: SharedMemory | None = None) -> None:
        """With `shared_memory`, large inputs lie in memory that the server maps."""
        self.url = url
        self._shared_memory = shared_memory
        self._channel = grpc.insecure_channel(url, options=_protocol.channel_options(url))
        self._ending = weakref.finalize(self, self._channel.close)  # at the program's end, while its threads run
        self._stub = service_pb2_grpc.GRPCInferenceServiceStub(self._channel)
        self._watcher = Watcher(self._look)
        self._leaving = Leaving(self._stub)
        self._closed = False

    def close(self) -> None:
        try:
            self._leaving.wait()
        finally:
            self._closed = True
            self._channel.close()

    def is_ready(self, model: str) -> bool:
        """Whether the model is ready; False also where no server answers."""
        try:
            reply = self._stub.ModelReady(service_pb2.ModelReadyRequest(name=model), timeout=_protocol.LOOK_UP_S)
        except grpc.RpcError:
            return False
        return bool(reply.ready)

    @contextlib.contextmanager
    def _sharing(self, inputs: Mapping[str, np.ndarray]) -> Iterator[Mapping[str, InputTensor]]:
        """The inputs, the large ones in shared memory where that was asked for, until the end of the block."""
        tensors, region = _regions.shared(inputs, self._shared_memory)
        if region is None:
            yield tensors
            return
        try:
            try:
                _regions.register(self._stub, region)
            except grpc.RpcError as error:
                raise _protocol.region_refusal(error, self.url, self._is_alive()) from None
            region.hide()
            yield tensors
        finally:
            region.hide()  # before: a registration that is still on its way then fails
            try:
                self._unregister(region)
            finally:
                region.close()

    def _unregister(self, region: Region) -> None:
        # A channel of its own: the client may have been closed while the answer came.
        with grpc.insecure_channel(self.url, options=_protocol.channel_options(self.url)) as channel:
            stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
            for wait in _regions.waits():
                try:
                    _regions.unregister(stub, region)
                    return
                except grpc.RpcError as error:
                    if error.code() == grpc.StatusCode.UNAVAILABLE:  # a dead server holds nothing
                        return
                time.sleep(wait)

    def infer(
        self, model: str, inputs: Mapping[str, np.ndarray], limit: float | None = None
    ) -> Generator[dict[str, np.ndarray], None, None]:
        """The outputs of each response, by name. Leaving the iterator cancels the request.

        Raises a subclass of `RequestFailed` with the server's message, `ServerUnreachable`, `ConnectionLost`; where the
        server does not end the request, `DeadlineExceeded` after `limit` seconds, and `Unavailable` a few seconds after
        its orchestrator died; `NotSupported` where memory cannot be shared.
        """
        with self._sharing(inputs) as tensors, contextlib.closing(self._infer(model, tensors, limit)) as responses:
            yield from responses

    def _infer(
        self, model: str, inputs: Mapping[str, InputTensor], limit: float | None
    ) -> Generator[dict[str, np.ndarray], None, None]:
        key = new_key()
        request = _protocol.infer_request(model, inputs, key)
        call = self._stub.ModelStreamInfer(iter((request,)), timeout=limit)
        watched = self._watcher.watch(model, call)
        answered = False
        refused = ""
        try:
            for reply in call:
                watched.hear()
                if reply.error_message:
                    refused = reply.error_message.rstrip(". ")
                    continue
                answered = True
                yield _protocol.infer_outputs(reply.infer_response)
            if refused:
                raise _protocol.refusal(refused) or self._refusal(model, refused)
        except grpc.RpcError as error:
            if not self._ending.alive:  # the thread of a program that ends: quietly
                raise SystemExit from None
            ended = _protocol.ended_here(error, watched, limit, self._closed)
            raise ended or _protocol.failure(error, self.url, answered, self._is_alive()) from None
        except GeneratorExit:
            if not sys.is_finalizing() and call.is_active():
                self._leaving.leave(call, model, key)
            raise
        except BaseException:  # Ctrl-C: a read that was interrupted keeps others from reading on
            call.cancel()
            raise
        finally:
            if not sys.is_finalizing():  # other threads stand still, with the locks that they have
                self._watcher.forget(watched)

    def _look(self, model: str) -> Look:
        asked = time.monotonic()
        try:
            call = self._stub.ModelStreamInfer(iter((_protocol.age_request(model),)), timeout=_protocol.LOOK_UP_S)
            return _protocol.look(asked, list(call))
        except (grpc.RpcError, ValueError):  # a ValueError where the channel was closed
            return Look(asked)

    def pipelines(self) -> list[str]:
        """The pipelines that are ready, sorted. Raises `ServerUnreachable`."""
        try:
            return self._ready_pipelines()
        except grpc.RpcError as error:
            raise _protocol.failure(error, self.url, answered=False, alive=False) from None

    def _is_alive(self) -> bool:
        try:
            self._stub.ServerLive(service_pb2.ServerLiveRequest(), timeout=_protocol.LOOK_UP_S)
        except (grpc.RpcError, ValueError):  # a ValueError where the channel was closed
            return False
        return True

    def _refusal(self, model: str, message: str) -> RequestFailed:
        """Requests that Triton refuses before a model sees them carry no code: is it the model that is missing?"""
        try:
            ready = self._ready_pipelines()
        except grpc.RpcError:
            return RequestFailed(message)
        return RequestFailed(message) if model in ready else _protocol.unknown_pipeline(message, self.url, ready)

    def _ready_pipelines(self) -> list[str]:
        request = service_pb2.RepositoryIndexRequest(ready=True)
        index = self._stub.RepositoryIndex(request, timeout=_protocol.LOOK_UP_S)
        return sorted(model.name for model in index.models if self._is_pipeline(model.name))

    def _is_pipeline(self, model: str) -> bool:
        """False also where the model was unloaded meanwhile."""
        request = service_pb2.ModelConfigRequest(name=model)
        try:
            reply = self._stub.ModelConfig(request, timeout=_protocol.LOOK_UP_S)
        except grpc.RpcError as error:
            if error.code() != grpc.StatusCode.DEADLINE_EXCEEDED and self._is_alive():
                return False
            raise
        return _protocol.is_pipeline(reply.config)
