"""Triton's streaming inference call, with the protocol classes of tritonclient.

tritonclient's own stream is one a client and can only be cancelled as a whole; one call a request needs no more code
and can be cancelled alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import grpc
import numpy as np
from tritonclient.grpc import service_pb2, service_pb2_grpc
from tritonclient.utils import deserialize_bytes_tensor, np_to_triton_dtype, serialize_byte_tensor, triton_to_np_dtype

from omni_python.client._errors import RequestFailed, ServerUnreachable

MAX_MESSAGE = 2**31 - 1
_OPTIONS = [("grpc.max_send_message_length", MAX_MESSAGE), ("grpc.max_receive_message_length", MAX_MESSAGE)]


class Transport:
    """A channel to one server; thread-safe, any number of calls at once."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._channel = grpc.insecure_channel(url, options=_OPTIONS)
        self._stub = service_pb2_grpc.GRPCInferenceServiceStub(self._channel)

    def close(self) -> None:
        self._channel.close()

    def is_ready(self, model: str, timeout: float = 5.0) -> bool:
        """Whether the model is ready; False also where no server answers."""
        try:
            reply = self._stub.ModelReady(service_pb2.ModelReadyRequest(name=model), timeout=timeout)
        except grpc.RpcError:
            return False
        return bool(reply.ready)

    def infer(
        self, model: str, inputs: Mapping[str, np.ndarray], timeout: float | None = None
    ) -> Iterator[dict[str, np.ndarray]]:
        """The outputs of each response, by name. Leaving the iterator cancels the request.

        Raises `RequestFailed` with the server's message, `ServerUnreachable` where the connection fails.
        """
        call = self._stub.ModelStreamInfer(iter((_request(model, inputs),)), timeout=timeout)
        try:
            for reply in call:
                if reply.error_message:
                    raise RequestFailed(reply.error_message)
                yield _outputs(reply.infer_response)
        except grpc.RpcError as error:
            raise _failure(error, self.url) from None
        finally:
            call.cancel()


def _request(model: str, inputs: Mapping[str, np.ndarray]) -> service_pb2.ModelInferRequest:
    request = service_pb2.ModelInferRequest(model_name=model)
    for name, array in inputs.items():
        dtype = np_to_triton_dtype(array.dtype)
        request.inputs.add(name=name, datatype=dtype, shape=array.shape)
        raw = serialize_byte_tensor(array).item() if dtype == "BYTES" and array.size else array.tobytes()
        request.raw_input_contents.append(raw if array.size else b"")
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


def _failure(error: grpc.RpcError, url: str) -> Exception:
    if error.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.UNKNOWN):
        return ServerUnreachable(f"no answer from a Triton server at {url}: {error.details()}")
    return RequestFailed(f"{error.code().name}: {error.details()}")
