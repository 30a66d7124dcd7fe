"""The client against a real tritonserver."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing

import pytest

from omni_python.client import (
    ConnectionLost,
    Finished,
    InvalidRequest,
    OmniClient,
    PipelineInfo,
    RequestFailed,
    ServerUnreachable,
    TextDelta,
    UnknownPipeline,
)
from omni_python.serve.triton_server import TritonServer
from tests.client.connections import Cable
from tests.client.deltas import told
from tests.e2e import metrics

LONG = {"chunks": 200_000, "chunk_bytes": 8}


@pytest.fixture
def forward(noop_server: TritonServer) -> Iterator[OmniClient]:
    """A pipeline that streams as many chunks of "x" as asked, and then their number."""
    with OmniClient(noop_server.grpc_url, "noop_forward") as client:
        yield client


@pytest.fixture
def line(noop_server: TritonServer) -> Iterator[OmniClient]:
    """A pipeline that answers with one piece of text."""
    with OmniClient(noop_server.grpc_url, "noop_line") as client:
        yield client


def wait_for(condition: Callable[[], bool], timeout: float = 5.0) -> bool:
    deadline = time.monotonic() + timeout
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def test_a_pipeline_describes_itself(forward: OmniClient, noop_server: TritonServer) -> None:
    assert forward.info() == PipelineInfo(modalities=("text",))
    with OmniClient(noop_server.grpc_url, "nowhere") as client, pytest.raises(UnknownPipeline, match="noop_forward"):
        client.info()


def test_deltas_make_the_text(forward: OmniClient) -> None:
    *deltas, last, end = list(forward.stream("x", sampling={"chunks": 3000, "chunk_bytes": 5}))
    assert told(deltas) == "xxxxx" * 3000 and last == TextDelta('{"chunks":3000}')
    assert isinstance(end, Finished) and end.finish_reason == "stop"
    assert end.usage == {"input_tokens": 0, "output_tokens": 0}
    assert end.first_text is not None and end.first_audio is None
    assert 0 < end.first_text < end.total


def test_a_delta_comes_while_the_answer_is_being_made(noop_server: TritonServer, forward: OmniClient) -> None:
    with closing(forward.stream("x", sampling=LONG)) as events:
        assert told([next(events)]).startswith("x" * 8)
        assert wait_for(lambda: metrics.read(noop_server, "omni_requests_in_flight", pipeline="noop_forward") == 1)
    metrics.wait_empty(noop_server, "noop_forward")


def test_chat_gathers_the_same_text(forward: OmniClient) -> None:
    answer = forward.chat("x", sampling={"chunks": 7, "chunk_bytes": 11})
    assert answer.text == "x" * 77 + '{"chunks":7}'
    assert len(answer.audio) == 0 and answer.sample_rate == 0 and answer.real_time_factor is None
    with pytest.raises(ValueError, match="no speech"):
        answer.save_wav("unwritten.wav")


def test_failure_of_a_stage_comes_with_its_message(line: OmniClient) -> None:
    for stage in "abc":
        with pytest.raises(RequestFailed, match=f"^NoopFailure: stage {stage} fails, as asked$"):
            line.chat("x", sampling={"fail_stage": stage})
        with pytest.raises(RequestFailed, match=f"^NoopFailure: stage {stage} fails, as asked$"):
            list(line.stream("x", sampling={"fail_stage": stage}))
    assert json.loads(line.chat("x", sampling={"nbytes": 3}).text) == {"nbytes": 3, "last": 2}


def test_refusals_come_with_the_servers_message(line: OmniClient) -> None:
    with pytest.raises(InvalidRequest, match="unknown field `warmth`; valid keys: nbytes"):
        line.chat("x", sampling={"warmth": 1})
    with pytest.raises(RequestFailed, match="the prompt is empty"):
        line.chat()
    with pytest.raises(RequestFailed, match="images: the file is empty"):
        line.chat("x", images=[b""])


def test_unknown_pipeline_names_those_that_there_are(noop_server: TritonServer) -> None:
    with OmniClient(noop_server.grpc_url, "qwen4_omni") as client:
        assert client.pipelines() == ["noop_forward", "noop_line"]
        assert not client.is_ready()
        with pytest.raises(UnknownPipeline, match="qwen4_omni.*ready at .*: noop_forward, noop_line$"):
            client.chat("x")


def test_a_stage_is_no_pipeline(noop_server: TritonServer) -> None:
    with (
        OmniClient(noop_server.grpc_url, "noop_line_a") as client,
        pytest.raises(UnknownPipeline, match="ready at .*: noop_forward, noop_line$"),
    ):
        client.chat("x")


def test_no_server() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    with OmniClient(f"127.0.0.1:{port}") as client:
        assert not client.is_ready()
        with pytest.raises(ServerUnreachable, match=f"127.0.0.1:{port}"):
            client.chat("x")


def test_another_kind_of_server(noop_server: TritonServer) -> None:
    with OmniClient(noop_server.http_url) as client, pytest.raises(ServerUnreachable, match=noop_server.http_url):
        client.chat("x")


def test_connection_cut_in_the_middle(noop_server: TritonServer) -> None:
    with (
        Cable(noop_server.host, noop_server.grpc_port) as cable,
        OmniClient(cable.url, "noop_forward") as client,
    ):
        events = client.stream("x", sampling=LONG)
        assert told([next(events)]).startswith("x" * 8)
        cable.cut()
        with pytest.raises(ConnectionLost, match=cable.url):
            list(events)
    metrics.wait_empty(noop_server, "noop_forward")


@pytest.mark.parametrize("leave", ["break", "close"])
def test_leaving_the_iterator_cancels(noop_server: TritonServer, forward: OmniClient, leave: str) -> None:
    def aborted() -> float:
        return metrics.read(noop_server, "omni_requests_total", pipeline="noop_forward", state="aborted")

    metrics.wait_empty(noop_server, "noop_forward")
    before = aborted()
    if leave == "break":
        for event in forward.stream("x", sampling=LONG):
            assert isinstance(event, TextDelta)
            break
    else:
        events = forward.stream("x", sampling=LONG)
        next(events)
        events.close()
    assert wait_for(lambda: aborted() == before + 1)
    metrics.wait_empty(noop_server, "noop_forward")
    assert forward.chat("x").text == '{"chunks":0}'


def test_sixteen_threads_share_a_client(forward: OmniClient) -> None:
    texts: dict[int, list[str]] = {}

    def ask(number: int) -> None:
        texts[number] = [
            forward.chat("x", sampling={"chunks": number, "chunk_bytes": turn + 1}).text for turn in range(4)
        ]

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert texts == {n: ["x" * n * (turn + 1) + f'{{"chunks":{n}}}' for turn in range(4)] for n in range(16)}


def test_a_proxy_of_the_environment_is_not_asked_for_this_machine(noop_server: TritonServer) -> None:
    client = f"OmniClient({noop_server.grpc_url!r}, 'noop_line')"
    code = f"from omni_python.client import OmniClient; print({client}.is_ready())"
    proxy = {"http_proxy": "http://127.0.0.1:9", "https_proxy": "http://127.0.0.1:9"}
    out = subprocess.run(
        [sys.executable, "-c", code], env=proxy, capture_output=True, text=True, timeout=60, check=True
    )
    assert out.stdout == "True\n"
