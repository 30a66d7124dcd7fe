"""The benchmarks' own HTTP/2 client, against gRPC's server and the limits that it holds clients to."""

from __future__ import annotations

import importlib
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from tritonclient.grpc import service_pb2

from omni_python.serve.triton_server import TritonServer

CHUNKS = 3
SCRIPTS = Path(__file__).parents[2] / "scripts"

MakeLoad = Callable[..., Any]


@pytest.fixture
def make_load(monkeypatch: pytest.MonkeyPatch) -> MakeLoad:
    """Scripts find each other by name, as in a folder that is run."""
    monkeypatch.syspath_prepend(str(SCRIPTS))
    made: MakeLoad = importlib.import_module("raw_load").Load
    return made


class Answering(grpc.GenericRpcHandler):
    """Answers each request with its size in `CHUNKS` chunks, and counts those that are there at once, and that left
    after they had been read."""

    def __init__(self) -> None:
        self.most = self.running = self.left = 0
        self.gate = threading.Event()
        self._lock = threading.Lock()

    def service(self, details: Any) -> Any:
        assert details.method == "/inference.GRPCInferenceService/ModelStreamInfer"
        assert all(value != "" for _, value in details.invocation_metadata)
        return grpc.stream_stream_rpc_method_handler(self._answer)

    def _answer(self, requests: Iterator[bytes], context: Any) -> Iterator[bytes]:
        for request in requests:  # one; none where the stream is cancelled before its request is read
            with self._lock:
                self.running += 1
                self.most = max(self.most, self.running)
            try:
                yield from self._chunks(request, context)
            finally:
                with self._lock:
                    self.running -= 1

    def _chunks(self, request: bytes, context: Any) -> Iterator[bytes]:
        text = service_pb2.ModelInferRequest.FromString(request).raw_input_contents[0]
        while not self.gate.wait(0.01):
            if not context.is_active():
                with self._lock:
                    self.left += 1
                return
        for _ in range(CHUNKS):
            answer = service_pb2.ModelStreamInferResponse()
            answer.infer_response.outputs.add(name="size")
            answer.infer_response.raw_output_contents.append(bytes(len(text)))
            yield answer.SerializeToString()


@contextmanager
def serving(options: Sequence[tuple[str, int]] = ()) -> Iterator[tuple[str, Answering]]:
    answering = Answering()
    server = grpc.server(ThreadPoolExecutor(64), handlers=[answering], options=list(options))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield f"127.0.0.1:{port}", answering
    finally:
        server.stop(None).wait()


def wait_until(reached: Callable[[], bool]) -> None:
    end = time.monotonic() + 20
    while not reached() and time.monotonic() < end:
        time.sleep(0.01)


def request(size: int) -> service_pb2.ModelInferRequest:
    made = service_pb2.ModelInferRequest(model_name="x")
    made.raw_input_contents.append(bytes(size))
    return made


@pytest.mark.parametrize("size", [10, 16_384, 40_000])
def test_a_request_of_any_size_is_answered(size: int, make_load: MakeLoad) -> None:
    """More of them than a connection's window takes at once, in frames as large as they may be."""
    with serving() as (url, answering):
        answering.gate.set()
        load = make_load(url, [request(size)])
        ended = load.batch(60, 30)
        load.close()
    assert [(one.error, one.responses, one.nbytes) for one in ended] == [("", CHUNKS, CHUNKS * size)] * 60
    assert all(one.sent <= one.first <= one.ended for one in ended)


def test_no_more_streams_are_opened_than_the_server_allows(make_load: MakeLoad) -> None:
    with serving([("grpc.max_concurrent_streams", 2)]) as (url, answering):
        load = make_load(url, [request(10)])
        for _ in range(40):
            load.send()
        wait_until(lambda: answering.running == 16)
        answering.gate.set()
        ended = load.batch(20, 20)
        load.close()
    assert {one.error for one in ended} == {""} and load.outstanding == 0
    assert answering.most == 2 * 8, "two on each of the load's connections"


def test_cancelled_requests_leave_the_server_and_the_connection_goes_on(make_load: MakeLoad) -> None:
    with serving([("grpc.max_concurrent_streams", 5)]) as (url, answering):
        load = make_load(url, [request(10)])
        for _ in range(80):
            load.send()
        wait_until(lambda: answering.running == 40)
        load.cancel()  # half of them before they were sent
        wait_until(lambda: answering.left == 40)
        answering.gate.set()
        ended = load.batch(16, 16)
        load.close()
    assert answering.left == 40
    assert [one.error for one in ended] == [""] * 16


def test_requests_are_answered_by_the_front_that_is_measured(noop_server: TritonServer, make_load: MakeLoad) -> None:
    asked = service_pb2.ModelInferRequest(model_name="noop_line")
    asked.inputs.add(name="text_input", datatype="BYTES", shape=[1])
    asked.raw_input_contents.append(b"\1\0\0\0x")
    load = make_load(noop_server.grpc_url, [asked])
    for _ in range(100):
        load.send()
    load.cancel()
    ended = load.batch(100, 16)
    load.close()
    assert [(one.error, one.responses) for one in ended] == [("", 1)] * 100


def test_an_unknown_model_is_an_error_of_the_request(noop_server: TritonServer, make_load: MakeLoad) -> None:
    load = make_load(noop_server.grpc_url, [service_pb2.ModelInferRequest(model_name="nobody")])
    [ended] = load.batch(1, 1)
    load.close()
    assert ended.error is not None and "nobody" in ended.error
