"""Bytes that are no requests, and requests that are cut off, against a real server: it answers afterwards."""

from __future__ import annotations

import http.client
import json
import random
import socket
import struct
from collections.abc import Iterator
from contextlib import ExitStack, closing, suppress

import grpc
import numpy as np
import psutil
import pytest
from tritonclient.grpc import service_pb2

from omni_python.client import OmniClient
from omni_python.control.directory import find_server_directory
from omni_python.control.framing import MAX_FRAME, framed
from omni_python.models.noop.config import NoopLinePipelineConfig
from omni_python.serve.triton_server import TritonServer
from tests.e2e import metrics

PIPELINE = "noop_line"
STREAMING = "noop_forward"
BODY = json.dumps({"text_input": "hi", "sampling_parameters": '{"nbytes": 3}'}).encode()
POST = b"POST /v2/models/noop_line/generate HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"


@pytest.fixture(autouse=True)
def serves_on(noop_server: TritonServer) -> Iterator[None]:
    """The same processes as before, and an answer."""
    before = _processes(noop_server)
    yield
    with OmniClient(noop_server.grpc_url, PIPELINE) as client:
        assert '"nbytes":5' in client.chat("x", sampling={"nbytes": 5}).text
    assert _processes(noop_server) == before


@pytest.fixture(autouse=True, scope="module")
def nothing_is_held(noop_server: TritonServer) -> Iterator[None]:
    yield
    for pipeline in (PIPELINE, STREAMING):
        metrics.wait_empty(noop_server, pipeline)


def _processes(server: TritonServer) -> set[int]:
    children = psutil.Process(server.process.pid).children(recursive=True)
    return {child.pid for child in children if child.status() != psutil.STATUS_ZOMBIE}


def send(port: int, data: bytes, wait: float = 0.05) -> bytes:
    """Send bytes, close that side, and read what comes for a moment."""
    answer = b""
    with socket.create_connection(("127.0.0.1", port), 10) as connection, suppress(OSError):
        connection.sendall(data)
        connection.settimeout(wait)
        while piece := connection.recv(65536):
            answer += piece
    return answer


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b"\xff\xfe\x00",
        b"[" * 100_000,
        b'{"a":' * 50_000,
        b'{"text_input": "\\ud800"}',
        b'{"text_input": 3}',
        b'{"text_input": null}',
        b'{"text_input": ["a", "b"]}',
        b'{"text_input": "x", "stream": "maybe"}',
        b'{"text_input": "x", "sampling_parameters": "' + b"[" * 5000 + b'"}',
        b'{"text_input": "x", "audio": [1e999]}',
        b'{"text_input": "x", "audio_sample_rate": 99999999999999999999}',
        b'{"text_input": "' + b"x" * 6_000_000 + b'"}',
        b'{"inputs": [{"name": "text_input", "shape": [-1], "datatype": "BYTES", "data": ["x"]}]}',
    ],
    ids=lambda body: repr(body[:30]),
)
def test_http_bodies(noop_server: TritonServer, body: bytes) -> None:
    for method in ("generate", "generate_stream", "infer"):
        connection = http.client.HTTPConnection("127.0.0.1", noop_server.http_port, timeout=20)
        with closing(connection):
            connection.request("POST", f"/v2/models/{PIPELINE}/{method}", body)
            answer = connection.getresponse()
            text = answer.read()
        assert answer.status >= 400 or b"error" in text or b"nbytes" in text


@pytest.mark.parametrize(
    "head",
    [
        b"Content-Length: %d\r\n" % (10 << 30),
        b"Content-Length: -1\r\n",
        b"Content-Length: 18446744073709551616\r\n",
        b"Content-Length: 5\r\nContent-Length: 6\r\n",
        b"Transfer-Encoding: chunked\r\n",
        b"Inference-Header-Content-Length: 99999999\r\nContent-Length: 10\r\n",
        b"Inference-Header-Content-Length: -5\r\nContent-Length: 10\r\n",
        b"Content-Encoding: gzip\r\nContent-Length: 10\r\n",
        b"X: " + b"y" * 200_000 + b"\r\n",
        b"".join(b"X%d: y\r\n" % number for number in range(5000)),
    ],
    ids=lambda head: repr(head[:60]),
)
def test_http_headers(noop_server: TritonServer, head: bytes) -> None:
    for path in (b"generate", b"infer"):
        send(noop_server.http_port, POST.replace(b"generate", path) + head + b"\r\n" + BODY)


def test_http_requests_cut_off_anywhere(noop_server: TritonServer) -> None:
    whole = POST + b"Content-Length: %d\r\n\r\n" % len(BODY) + BODY
    for end in random.sample(range(len(whole)), 40):
        send(noop_server.http_port, whole[:end], 0.01)
    for _ in range(40):
        send(noop_server.http_port, random.randbytes(random.randrange(2000)), 0.01)


def frame(kind: int, flags: int, stream: int, body: bytes, length: int | None = None) -> bytes:
    return (
        struct.pack(">I", len(body) if length is None else length)[1:]
        + bytes([kind, flags])
        + struct.pack(">I", stream)
        + body
    )


def headers(path: bytes = b"/inference.GRPCInferenceService/ModelStreamInfer", **more: bytes) -> bytes:
    """HPACK: literal fields without indexing and without Huffman's code."""
    fields = {b":method": b"POST", b":scheme": b"http", b":path": path, b":authority": b"x", b"te": b"trailers"}
    fields[b"content-type"] = b"application/grpc"
    fields |= {name.replace("_", "-").encode(): value for name, value in more.items()}
    block = b"".join(b"\0" + bytes([len(name)]) + name + bytes([len(value)]) + value for name, value in fields.items())
    return frame(1, 4, 1, block)


OPENED = PREFACE + frame(4, 0, 0, b"") + headers()


@pytest.mark.parametrize(
    "data",
    [
        PREFACE[:10],
        PREFACE,
        PREFACE + frame(4, 0, 0, b"", length=0xFFFFFF),
        PREFACE + frame(4, 0, 0, b"\0\4\xff\xff\xff\xff"),
        PREFACE + frame(4, 0, 0, b"") + frame(1, 4, 1, b"\xff" * 100),
        PREFACE + frame(4, 0, 0, b"") + frame(1, 4, 0, b"\x82"),
        PREFACE + frame(4, 0, 0, b"") + frame(9, 4, 1, b"x" * 100) * 1000,
        PREFACE + frame(4, 0, 0, b"") + frame(6, 0, 0, b"x" * 8) * 5000,
        PREFACE + frame(4, 0, 0, b"") + frame(8, 0, 0, b"\x7f\xff\xff\xff") * 3,
        OPENED,
        OPENED[:-20],
        OPENED + frame(0, 0, 1, b"\0\0\0"),
        OPENED + frame(0, 0, 1, b"\0\xff\xff\xff\xff" + b"x" * 1000),
        OPENED + frame(0, 1, 1, b"\1\0\0\0\5hello"),
        OPENED + frame(0, 1, 1, b"\0\0\0\0\5hello"),
        OPENED + frame(0, 1, 1, b"\0\0\0\1\0short"),
        OPENED + frame(3, 0, 1, b"\0\0\0\x08") * 100,
        (OPENED + frame(3, 0, 1, b"\0\0\0\x08")),
        OPENED + frame(0, 1, 99, b"\0\0\0\0\0"),
    ],
)
def test_http2_frames(noop_server: TritonServer, data: bytes) -> None:
    send(noop_server.grpc_port, data)


def request(**changes: object) -> service_pb2.ModelInferRequest:
    made = service_pb2.ModelInferRequest(model_name=PIPELINE, id="1")
    made.inputs.add(name="text_input", datatype="BYTES", shape=[1])
    made.raw_input_contents.append(struct.pack("<I", 2) + b"hi")
    for name, value in changes.items():
        setattr(made, name, value)
    return made


def tensor(name: str, datatype: str, shape: list[int], content: bytes) -> service_pb2.ModelInferRequest:
    made = request()
    made.inputs.add(name=name, datatype=datatype, shape=shape)
    made.raw_input_contents.append(content)
    return made


def infer(server: TritonServer, data: bytes) -> str:
    """Send bytes as the only message of a stream; the error's text, "" for an answer without one."""
    with grpc.insecure_channel(server.grpc_url) as channel:
        call = channel.stream_stream("/inference.GRPCInferenceService/ModelStreamInfer")(iter([data]), timeout=20)
        try:
            answers = [service_pb2.ModelStreamInferResponse.FromString(answer) for answer in call]
        except grpc.RpcError as error:
            assert error.code() is not grpc.StatusCode.DEADLINE_EXCEEDED, "no answer"
            return str(error.details() or error.code())
    return "".join(answer.error_message for answer in answers)


@pytest.mark.parametrize(
    "message",
    [
        tensor("voice", "BYTES", [1], struct.pack("<I", 0xFFFFFFFF) + b"x"),
        tensor("voice", "BYTES", [1], struct.pack("<I", 5) + b"x"),
        tensor("voice", "BYTES", [1], b"\1"),
        tensor("voice", "BYTES", [1], b""),
        tensor("images", "BYTES", [3], struct.pack("<I", 1) + b"x"),
        tensor("audio", "FP32", [1 << 40], b"1234"),
        tensor("audio", "FP32", [-4], b"1234"),
        tensor("audio", "FP32", [2], b"1234"),
        tensor("audio", "FP32", [1, 1], b"1234"),
        tensor("audio", "INT64", [1], b"12345678"),
        tensor("audio_sample_rate", "INT32", [0], b""),
        tensor("stream", "BOOL", [1], b"\xff"),
        tensor("text_input", "BYTES", [1], struct.pack("<I", 1) + b"x"),
        tensor("nothing", "BYTES", [1], struct.pack("<I", 1) + b"x"),
        request(model_name="nowhere"),
        request(model_name=""),
        request(model_version="7"),
        request(model_name="noop_line_a"),
    ],
    ids=lambda message: f"{message.model_name} {message.inputs[-1].name} {message.inputs[-1].shape}",
)
def test_tensors_that_lie(noop_server: TritonServer, message: service_pb2.ModelInferRequest) -> None:
    error = infer(noop_server, message.SerializeToString())
    assert error or message.inputs[-1].name in ("stream", "audio_sample_rate")


def test_stage_models_refuse_what_is_no_recording(noop_server: TritonServer) -> None:
    for content in (b"", b"\xc1", b"\x93\xadSubmitMessage\x01", random.randbytes(200)):
        made = service_pb2.ModelInferRequest(model_name="noop_line_a")
        made.inputs.add(name="recording", datatype="UINT8", shape=[len(content)])
        made.raw_input_contents.append(content)
        infer(noop_server, made.SerializeToString())


def test_protobuf_cut_off_and_damaged(noop_server: TritonServer) -> None:
    good = request().SerializeToString()
    assert not infer(noop_server, good)
    for end in range(1, len(good), 3):
        infer(noop_server, good[:end])
    rng = np.random.default_rng()
    for _ in range(60):
        damaged = bytearray(good)
        for at in rng.integers(0, len(good), 3):
            damaged[at] = rng.integers(256)
        infer(noop_server, bytes(damaged))


def endless() -> bytes:
    """A request whose answer has no end, as it goes into a gRPC stream."""
    made = service_pb2.ModelInferRequest(model_name=STREAMING, id="1")
    sampling = b'{"chunks": 1000000000, "chunk_bytes": 10}'
    for name, datatype, content in (
        ("text_input", "BYTES", struct.pack("<I", 2) + b"hi"),
        ("sampling_parameters", "BYTES", struct.pack("<I", len(sampling)) + sampling),
        ("stream", "BOOL", b"\1"),
    ):
        made.inputs.add(name=name, datatype=datatype, shape=[1])
        made.raw_input_contents.append(content)
    return grpc_message(made.SerializeToString())


def grpc_message(content: bytes, length: int | None = None, compressed: bool = False) -> bytes:
    return struct.pack(">?I", compressed, len(content) if length is None else length) + content


def wait_for_data(connection: socket.socket) -> None:
    """Read HTTP/2 frames until one has content of an answer."""
    with connection.makefile("rb") as file:
        kind = -1
        while kind != 0:
            head = file.read(9)
            assert len(head) == 9, "the server has ended the connection"
            kind = head[3]
            file.read(int.from_bytes(head[:3], "big"))


RESET = frame(3, 0, 1, b"\0\0\0\x08")
HALF = frame(0, 0, 1, grpc_message(b"short", length=256))


@pytest.mark.parametrize(
    ("opening", "broken"),
    [
        (headers(), RESET),
        (headers(), b""),
        (headers(), frame(7, 0, 0, struct.pack(">II", 0, 0))),
        (headers(), HALF),
        (headers(), HALF + RESET),
        (headers(), frame(0, 1, 1, grpc_message(b"short", length=256))),
        (headers(), frame(0, 0, 1, endless()[:40])),
        (headers(), frame(0, 0, 1, b"\0\0\0", length=100)),
        (headers(), frame(0, 1, 1, b"")),
        (headers(), frame(0, 0, 1, grpc_message(b"hello"))),
        (headers(), frame(0, 0, 1, grpc_message(b"hello", compressed=True))),
        (headers(), frame(0, 0, 1, grpc_message(b"hello", length=0xFFFFFFFF))),
        (headers(), frame(0, 0, 1, b"", length=0xFFFFFF)),
        (headers(), frame(8, 0, 1, b"\x7f\xff\xff\xff") * 3),
        (headers(), headers()),
        (headers(), b"\xff" * 1000),
        (headers(content_length=b"5"), b""),
        (headers(content_length=b"99999999"), frame(0, 1, 1, b"")),
        (headers(content_length=b"-1"), HALF),
    ],
    ids=lambda part: repr(part[-24:]) if len(part) < 2000 else "",
)
def test_answers_to_a_grpc_stream_that_breaks_come_to_an_end(
    noop_server: TritonServer, opening: bytes, broken: bytes
) -> None:
    """Once the answer streams. At last the connection is closed in order, or reset, as chance will have it."""
    before = metrics.aborted(noop_server, STREAMING)
    with socket.create_connection(("127.0.0.1", noop_server.grpc_port), 10) as connection:
        connection.sendall(PREFACE + frame(4, 0, 0, b"") + opening + frame(0, 0, 1, endless()))
        wait_for_data(connection)
        connection.sendall(broken)
        if random.random() < 0.5:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    metrics.wait_aborted(noop_server, STREAMING, before + 1, timeout=10)


def test_answers_to_an_http_connection_that_is_reset_come_to_an_end(noop_server: TritonServer) -> None:
    before = metrics.aborted(noop_server, STREAMING)
    sampling = {"chunks": 10**9, "chunk_bytes": 10}
    body = json.dumps({"text_input": "hi", "stream": True, "sampling_parameters": json.dumps(sampling)}).encode()
    head = POST.replace(b"noop_line/generate", b"noop_forward/generate_stream")
    with socket.create_connection(("127.0.0.1", noop_server.http_port), 10) as connection:
        connection.sendall(head + b"Content-Length: %d\r\n\r\n" % len(body) + body)
        answer = b""
        while b"xxx" not in answer:
            piece = connection.recv(65536)
            assert piece, answer
            answer += piece
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    metrics.wait_aborted(noop_server, STREAMING, before + 1, timeout=10)


def test_streams_that_nobody_of_ours_would_send_hold_up_no_process(noop_server: TritonServer) -> None:
    """To the socket of each, over many connections that stay open. Answers come meanwhile."""
    base = NoopLinePipelineConfig().endpoints.resolved_base_path
    directory = find_server_directory(base, noop_server.process.pid)
    assert directory is not None
    addresses = [path for path in directory.iterdir() if path.is_socket()]
    assert len(addresses) >= 4
    with ExitStack() as stack:
        for address in addresses * 25:
            for stream in (
                random.randbytes(random.randrange(5000)),
                framed(random.randbytes(200)) * 20,
                (MAX_FRAME + 1).to_bytes(4, "big") + b"more",
                MAX_FRAME.to_bytes(4, "big") + random.randbytes(1000),
                POST + b"\r\n",
                b"\0",
            ):
                connection = stack.enter_context(socket.socket(socket.AF_UNIX))
                connection.settimeout(10)
                connection.connect(str(address))
                with suppress(BrokenPipeError, ConnectionResetError):
                    connection.sendall(stream)
        with OmniClient(noop_server.grpc_url, PIPELINE) as client:
            for nbytes in (1, 100_000):
                assert f'"nbytes":{nbytes},' in client.chat("x", sampling={"nbytes": nbytes}).text
