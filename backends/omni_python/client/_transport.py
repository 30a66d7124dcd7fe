"""Triton's streaming inference call, with the protocol classes of tritonclient.

tritonclient's own stream is one a client and can only be cancelled as a whole; one call a request needs no more code
and can be cancelled alone.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Generator, Mapping
from typing import Any

import grpc
import numpy as np
from tritonclient.grpc import service_pb2, service_pb2_grpc
from tritonclient.utils import deserialize_bytes_tensor, np_to_triton_dtype, serialize_byte_tensor, triton_to_np_dtype

from omni_python.client._errors import (
    ConnectionLost,
    OmniClientError,
    RequestFailed,
    ServerUnreachable,
    UnknownPipeline,
)

_ANY_LENGTH = -1
_LOOK_UP_S = 5.0
"""Patience for the small calls, which a healthy server answers in milliseconds."""


class Transport:
    """A channel to one server; thread-safe, any number of calls at once."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._channel = grpc.insecure_channel(url, options=_channel_options(url))
        self._stub = service_pb2_grpc.GRPCInferenceServiceStub(self._channel)

    def close(self) -> None:
        self._channel.close()

    def is_ready(self, model: str) -> bool:
        """Whether the model is ready; False also where no server answers."""
        try:
            reply = self._stub.ModelReady(service_pb2.ModelReadyRequest(name=model), timeout=_LOOK_UP_S)
        except grpc.RpcError:
            return False
        return bool(reply.ready)

    def infer(self, model: str, inputs: Mapping[str, np.ndarray]) -> Generator[dict[str, np.ndarray], None, None]:
        """The outputs of each response, by name. Leaving the iterator cancels the request.

        Raises `UnknownPipeline`, `RequestFailed` with the server's message, `ServerUnreachable`, `ConnectionLost`.
        """
        call = self._stub.ModelStreamInfer(iter((_request(model, inputs),)))
        answered = False
        try:
            for reply in call:
                if reply.error_message:
                    raise self._refusal(model, reply.error_message.rstrip(". "))
                answered = True
                yield _outputs(reply.infer_response)
        except grpc.RpcError as error:
            raise _connection_error(error, self.url, answered) from None
        finally:
            call.cancel()

    def _refusal(self, model: str, message: str) -> RequestFailed:
        """The server names no code in a stream, hence the look whether it is the model that is missing."""
        try:
            ready = self._ready_pipelines()
        except grpc.RpcError:
            return RequestFailed(message)
        if model in ready:
            return RequestFailed(message)
        return UnknownPipeline(f"{message}; pipelines ready at {self.url}: {', '.join(ready) or 'none'}")

    def _ready_pipelines(self) -> list[str]:
        index = self._stub.RepositoryIndex(service_pb2.RepositoryIndexRequest(ready=True), timeout=_LOOK_UP_S)
        return sorted(model.name for model in index.models if self._is_pipeline(model.name))

    def _is_pipeline(self, model: str) -> bool:
        reply = self._stub.ModelConfig(service_pb2.ModelConfigRequest(name=model), timeout=_LOOK_UP_S)
        return bool(reply.config.parameters["omni_role"].string_value == "orchestrator")


def _channel_options(url: str) -> list[tuple[str, int]]:
    options = [("grpc.max_send_message_length", _ANY_LENGTH), ("grpc.max_receive_message_length", _ANY_LENGTH)]
    # gRPC would go through a proxy of the environment even to this machine.
    return [*options, ("grpc.enable_http_proxy", 0)] if _is_loopback(url) else options


def _is_loopback(url: str) -> bool:
    host = url.rpartition(":")[0].strip("[]")
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _request(model: str, inputs: Mapping[str, np.ndarray]) -> service_pb2.ModelInferRequest:
    request = service_pb2.ModelInferRequest(model_name=model)
    for name, array in inputs.items():
        dtype = np_to_triton_dtype(array.dtype)
        request.inputs.add(name=name, datatype=dtype, shape=array.shape)
        request.raw_input_contents.append(serialize_byte_tensor(array).item() if dtype == "BYTES" else array.tobytes())
    return request


def _outputs(response: Any) -> dict[str, np.ndarray]:
    outputs = {}
    for output, raw in zip(response.outputs, response.raw_output_contents, strict=True):
        if output.datatype == "BYTES":
            array = deserialize_bytes_tensor(raw)
        else:
            array = np.frombuffer(raw, triton_to_np_dtype(output.datatype))
        outputs[output.name] = array.reshape(tuple(output.shape))
    return outputs


def _connection_error(error: grpc.RpcError, url: str, answered: bool) -> OmniClientError:
    code, details = error.code(), " ".join(str(error.details()).split())
    if code in (grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.INVALID_ARGUMENT):
        return RequestFailed(details)
    if answered:
        return ConnectionLost(f"lost the connection to {url} in the middle of the answer: {details}")
    return ServerUnreachable(f"no Triton server answers at {url} (its gRPC port): {details}")
