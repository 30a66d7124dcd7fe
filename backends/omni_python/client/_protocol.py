"""Triton's gRPC messages and status codes, translated; used by the blocking and the async transport alike.

tritonclient's own stream is one a client and can only be cancelled as a whole; one call a request needs no more code
and can be cancelled alone. Hence its protocol classes are used, and not its client.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping, Sequence
from typing import Any

import grpc
import numpy as np
from tritonclient.grpc import service_pb2
from tritonclient.utils import deserialize_bytes_tensor, np_to_triton_dtype, serialize_byte_tensor, triton_to_np_dtype

from omni_python.client._errors import (
    ConnectionLost,
    DeadlineExceeded,
    InvalidRequest,
    NotFound,
    NotSupported,
    OmniClientError,
    RequestFailed,
    ServerUnreachable,
    Unavailable,
    UnknownPipeline,
)
from omni_python.client._regions import InputTensor, SharedTensor
from omni_python.client._watch import MARGIN, NOT_HEALTHY, Look, Watched

LOOK_UP_S = 5.0
"""Patience for the small calls, which a healthy server answers in milliseconds."""

_ANY_LENGTH = -1
_RECONNECT_MS = 100, 300
"""Before the second try to connect, and at most before a later one. gRPC's own 1 s to 120 s, which all channels of a
process to one address share, would notice a server that is back seconds late."""

_LOCAL = (grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.INVALID_ARGUMENT)
"""What gRPC itself says of a message that cannot be sent."""

_STATUS_FAILURES: dict[grpc.StatusCode, type[RequestFailed]] = {
    grpc.StatusCode.INVALID_ARGUMENT: InvalidRequest,
    grpc.StatusCode.RESOURCE_EXHAUSTED: InvalidRequest,  # a message beyond the server's bounds
    grpc.StatusCode.UNIMPLEMENTED: NotSupported,
    grpc.StatusCode.UNAVAILABLE: Unavailable,
}

_FAILURES: dict[str, type[RequestFailed]] = {
    "INVALID_ARGUMENT": InvalidRequest,
    "UNSUPPORTED": NotSupported,
    "UNAVAILABLE": Unavailable,
    "DEADLINE_EXCEEDED": DeadlineExceeded,
    "NOT_FOUND": NotFound,
    "CANCELLED": RequestFailed,
    "INTERNAL": RequestFailed,
}
"""By the code with which the pipelines begin their messages: streams carry the message alone."""


def channel_options(url: str) -> list[tuple[str, int]]:
    """Messages of any length, new connections without long waits, and no proxy to a server on this machine."""
    options = [("grpc.max_send_message_length", _ANY_LENGTH), ("grpc.max_receive_message_length", _ANY_LENGTH)]
    options += zip(("grpc.initial_reconnect_backoff_ms", "grpc.max_reconnect_backoff_ms"), _RECONNECT_MS, strict=True)
    # gRPC would go through a proxy of the environment even to this machine.
    return [*options, ("grpc.enable_http_proxy", 0)] if _is_loopback(url) else options


def _is_loopback(url: str) -> bool:
    host = url.rpartition(":")[0].strip("[]")
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def infer_request(model: str, inputs: Mapping[str, InputTensor], cancel_key: str = "") -> service_pb2.ModelInferRequest:
    """A request of the model with these inputs, which can be ended by its `cancel_key` where it has one."""
    request = service_pb2.ModelInferRequest(model_name=model)
    if cancel_key:
        request.parameters["cancel_key"].string_param = cancel_key
    for name, array in inputs.items():
        if isinstance(array, SharedTensor):
            tensor = request.inputs.add(name=name, datatype=array.datatype, shape=array.shape)
            tensor.parameters["shared_memory_region"].string_param = array.region
            tensor.parameters["shared_memory_offset"].int64_param = array.offset
            tensor.parameters["shared_memory_byte_size"].int64_param = array.nbytes
            continue
        dtype = np_to_triton_dtype(array.dtype)
        request.inputs.add(name=name, datatype=dtype, shape=array.shape)
        request.raw_input_contents.append(serialize_byte_tensor(array).item() if dtype == "BYTES" else array.tobytes())
    return request


def age_request(model: str) -> service_pb2.ModelInferRequest:
    """Asks an orchestrator how old it is."""
    return infer_request(model, {"describe": np.array([False])})


def cancel_request(model: str, cancel_key: str) -> service_pb2.ModelInferRequest:
    """Asks an orchestrator to end another request."""
    return infer_request(model, {"cancel": np.array([cancel_key.encode()], np.object_)})


def look(asked: float, replies: Sequence[Any]) -> Look:
    """What the replies to an `age_request`, sent at `asked`, say."""
    for reply in replies:
        if reply.error_message:
            return Look(asked, refusal=reply.error_message)
        uptime = infer_outputs(reply.infer_response).get("uptime_ms")
        if uptime is not None:
            return Look(asked, float(uptime[0]) / 1000)
    return Look(asked)


def infer_outputs(response: Any) -> dict[str, np.ndarray]:
    """The tensors of a response by name."""
    outputs = {}
    for output, raw in zip(response.outputs, response.raw_output_contents, strict=True):
        if output.datatype == "BYTES":
            array = deserialize_bytes_tensor(raw)
        else:
            array = np.frombuffer(raw, triton_to_np_dtype(output.datatype))
        outputs[output.name] = array.reshape(tuple(output.shape))
    return outputs


def is_pipeline(config: Any) -> bool:
    """Whether a model's configuration is that of an orchestrator."""
    return bool(config.parameters["omni_role"].string_value == "orchestrator")


def unknown_pipeline(message: str, url: str, ready: Sequence[str]) -> UnknownPipeline:
    return UnknownPipeline(f"{message.rstrip('. ')}; pipelines ready at {url}: {', '.join(ready) or 'none'}", ready)


def refusal(message: str) -> RequestFailed | None:
    """The error that a pipeline answered with, or Triton in place of a dead one; None for its other messages."""
    code, _, text = message.partition(": ")
    if kind := _FAILURES.get(code):
        return kind(text)
    return Unavailable(message) if NOT_HEALTHY in message else None


def region_refusal(error: grpc.RpcError, url: str, alive: bool) -> OmniClientError:
    """The error of a region's registration, for which a healthy server has one reason: it cannot map the region."""
    if not alive:
        return failure(error, url, answered=False, alive=False)
    return NotSupported(
        f"{url} cannot open this machine's shared memory: it runs on another host, in a container of its own, or for "
        f"another user; leave shared_memory out ({' '.join(str(error.details()).split())})"
    )


def ended_here(error: grpc.RpcError, watched: Watched, limit: float | None, closed: bool) -> OmniClientError | None:
    """The error of a call that the client itself has ended; None for others."""
    if closed:
        return ConnectionLost("the client was closed while the answer came")
    if watched.reason:
        return Unavailable(watched.reason)
    if limit is not None and error.code() == grpc.StatusCode.DEADLINE_EXCEEDED:
        return DeadlineExceeded(
            f"the server did not end the request by its deadline, nor {MARGIN:g} s later; its connection, or the "
            f"orchestrator of pipeline {watched.model}, may be lost"
        )
    return None


def failure(error: grpc.RpcError, url: str, answered: bool, alive: bool) -> OmniClientError:
    """The error of a call that ended with a status; `answered` if a response came before. `alive` tells whether the
    server answers now: the status alone does not, UNAVAILABLE is both "overloaded" and "nobody listens"."""
    code, details = error.code(), " ".join(str(error.details()).split())
    if alive or code in _LOCAL:
        return _STATUS_FAILURES.get(code, RequestFailed)(details)
    if answered:
        return ConnectionLost(f"lost the connection to {url} in the middle of the answer: {details}")
    return ServerUnreachable(f"no Triton server answers at {url} (its gRPC port): {details}")
