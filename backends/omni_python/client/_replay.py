"""Replays a recording on the model of its stage."""

from __future__ import annotations

import grpc
import numpy as np
from tritonclient.grpc import service_pb2, service_pb2_grpc

from omni_python.client import _protocol
from omni_python.client._errors import ConnectionLost, RequestFailed
from omni_python.proto.errors import InvalidArgument
from omni_python.proto.recording import Recording, decode_recording


def replay(url: str, data: bytes, model: str, limit: float | None = None) -> Recording:
    """The outputs of the stage's Triton model `model` for the inputs in `data`, a recording's file, within `limit`
    seconds.

    Raises a kind of `RequestFailed` with the server's message, `ServerUnreachable`, `ConnectionLost`.
    """
    request = _protocol.infer_request(model, {"recording": np.frombuffer(data, np.uint8)})
    pieces: list[bytes] = []
    refused = ""
    with grpc.insecure_channel(url, options=_protocol.channel_options(url)) as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        try:
            # To the stream's end: Triton 24.10 may keep the request of a client that leaves at its last response.
            for reply in stub.ModelStreamInfer(iter((request,)), timeout=limit):
                refused = refused or reply.error_message.rstrip(". ")
                pieces += [piece.tobytes() for piece in _protocol.infer_outputs(reply.infer_response).values()]
        except grpc.RpcError as error:
            raise _protocol.failure(error, url, bool(pieces), _answers(stub)) from None
    if refused:
        raise _protocol.refusal(refused) or RequestFailed(refused)
    try:
        return decode_recording(b"".join(pieces))
    except InvalidArgument as error:
        raise ConnectionLost(f"{url} stopped in the middle of the replay: {error}") from None


def _answers(stub: service_pb2_grpc.GRPCInferenceServiceStub) -> bool:
    try:
        stub.ServerLive(service_pb2.ServerLiveRequest(), timeout=_protocol.LOOK_UP_S)
    except grpc.RpcError:
        return False
    return True
