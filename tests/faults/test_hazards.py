"""Known hazards of Triton's Python backend: each has a guard, and a test that fails without it.

Elsewhere: the folder that a stub runs in cannot replace the backend's `model` (tests/serve/test_triton_server.py),
numpy 2 is refused (tests/serve/test_environment.py), a client that leaves before the first chunk is noticed, and nobody
asks for its presence after the last response (tests/e2e/test_cancel.py).
"""

from __future__ import annotations

import gc
import importlib
import sys
import threading
import types
import weakref
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import numpy as np
import pytest
import tritonclient.grpc as grpc

from omni_python.client import OmniClient, OmniClientError
from omni_python.proto.errors import ErrorCode
from omni_python.proto.messages import SubmitReply, decode_reply
from omni_python.serve.environment import ServerSetupError
from omni_python.serve.triton_server import ServerOptions, TritonServer


def test_an_error_after_the_first_response_reaches_the_client(noop_server: TritonServer) -> None:
    """A streamed answer begins with an empty response, so every later error is a second one."""
    with OmniClient(noop_server.grpc_url, "noop_line") as client:
        with pytest.raises(OmniClientError, match="stage c fails, as asked"):
            list(client.stream("x", sampling={"fail_stage": "c"}))
        with pytest.raises(OmniClientError, match="stage b fails, as asked"):
            client.chat("x", sampling={"fail_stage": "b"})


@pytest.mark.parametrize("message", [b"", b"junk", msgspec.msgpack.encode(["AbortMessage", 1, "x"])])
def test_a_stage_answers_errors_inside_its_reply(noop_server: TritonServer, message: bytes) -> None:
    """Through BLS an error that is not the first response is lost, and its caller waits for ever."""
    replies: list[SubmitReply] = []
    done = threading.Event()

    def on_reply(result: grpc.InferResult | None, error: Exception | None) -> None:
        if result is not None and result.as_numpy("reply") is not None:
            replies.append(decode_reply(result.as_numpy("reply").tobytes()))
        done.set()

    tensor = grpc.InferInput("message", [len(message)], "UINT8")
    tensor.set_data_from_numpy(np.frombuffer(message, np.uint8))
    with grpc.InferenceServerClient(noop_server.grpc_url) as client:
        client.start_stream(on_reply)
        client.async_stream_infer("noop_line_a", [tensor])
        assert done.wait(10)
        client.stop_stream()
    [reply] = replies
    assert reply.error is not None and reply.error.code == ErrorCode.INVALID_ARGUMENT


def test_requests_in_flight_use_up_no_threads_of_the_stub(noop_server: TritonServer) -> None:
    """A BLS call that waits holds one of 32 threads, which also carry responses: 64 requests that wait in a stage must
    not keep another one from being answered."""
    with OmniClient(noop_server.grpc_url, "noop_line") as client, ThreadPoolExecutor(64) as pool:
        waiting = [pool.submit(client.chat, "x", sampling={"delay": 0.1}) for _ in range(64)]
        while sum(asked.running() for asked in waiting) < 60:
            pass
        with pytest.raises(OmniClientError, match="unknown field"):
            client.chat("x", sampling={"bogus": 1})
        assert sum(asked.done() for asked in waiting) < 40, "it was answered only after the others"
        assert {asked.result(30).text for asked in waiting} == {'{"nbytes":0,"last":0}'}


class Response:
    def __init__(self, data: bytes) -> None:
        self._data = data

    def has_error(self) -> bool:
        return False

    def output_tensors(self) -> list[Response]:
        return [self]

    def as_numpy(self) -> np.ndarray:
        return np.frombuffer(self._data, np.uint8)


class Replies:
    """Stands for a BLS call's response iterator, whose C++ part frees what Python let go of too early."""

    alive: weakref.WeakSet[Replies] = weakref.WeakSet()

    def __init__(self) -> None:
        self.alive.add(self)

    def __iter__(self) -> Iterator[Response]:
        yield Response(b"reply")


@pytest.fixture
def bls(monkeypatch: pytest.MonkeyPatch) -> types.ModuleType:
    """`glue.bls` outside of Triton, whose module exists in a stub alone."""
    triton = types.ModuleType("triton_python_backend_utils")
    triton.Tensor = lambda name, array: array  # type: ignore[attr-defined]
    triton.InferenceRequest = lambda **_: types.SimpleNamespace(  # type: ignore[attr-defined]
        exec=lambda decoupled: Replies()
    )
    monkeypatch.setitem(sys.modules, "triton_python_backend_utils", triton)
    monkeypatch.delitem(sys.modules, "omni_python.glue.bls", raising=False)
    module = importlib.import_module("omni_python.glue.bls")
    monkeypatch.delitem(sys.modules, "omni_python.glue.bls")
    return module


def test_response_iterators_outlive_their_calls(bls: types.ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(bls.time, "monotonic", lambda: now)
    for _ in range(5):
        assert bls.call_stage("model", b"message") == b"reply"
    gc.collect()
    assert len(Replies.alive) == 5
    now += bls.KEEP_ALIVE + 0.1
    bls.call_stage("model", b"message")
    gc.collect()
    assert len(Replies.alive) == 1


def test_metrics_are_written_by_one_thread_of_one_module() -> None:
    """Updates from several threads crash tritonserver; only the writer knows Triton's metrics at all."""
    import omni_python

    root = Path(omni_python.__file__ or "").parent
    users = {str(p.relative_to(root)) for p in root.rglob("*.py") if "MetricFamily" in p.read_text()}
    assert users == {"glue/metrics.py"}
    assert (root / "glue" / "metrics.py").read_text().count("Thread(") == 1


def test_shared_memory_that_is_too_small_is_said_at_the_start(tmp_path: Path) -> None:
    for name in "abc":
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.pbtxt").touch()
    options = ServerOptions(model_repository=tmp_path)
    options.check_shared_memory(free=12 << 20)
    with pytest.raises(ServerSetupError, match="has 11 MiB free, and 3 models need 12: make it larger"):
        options.check_shared_memory(free=11 << 20)
