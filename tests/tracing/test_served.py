"""Traces through a real tritonserver: W3C contexts by every front, `omni trace`, and spans at an OTLP receiver."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator
from pathlib import Path

import grpc
import httpx
import numpy as np
import pytest
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status
from tritonclient.grpc import service_pb2_grpc

from omni_python.cli import main
from omni_python.client import AsyncOmniClient, NotFound, OmniClient, RequestFailed, Trace
from omni_python.client._protocol import infer_request
from omni_python.config.compile import compile_pipeline
from omni_python.config.parts import TraceConfig
from omni_python.models.noop.config import NoopLinePipelineConfig
from omni_python.proto.trace import decode_trace
from omni_python.serve.openai.app import create_app
from omni_python.serve.openai.server import HttpServer
from omni_python.serve.server_options import ServerOptions
from omni_python.serve.triton_server import TritonServer
from tests.tracing.receiver import Received, attributes, receiving

SPAN = "00f067aa0ba902b7"


def parent(number: int, flags: str = "01") -> tuple[str, str]:
    """A trace id, and the header of a caller's span in it."""
    trace_id = f"{0xC0FFEE:x}{number:026x}"
    return trace_id, f"00-{trace_id}-{SPAN}-{flags}"


@pytest.fixture(scope="module")
def received() -> Iterator[Received]:
    with receiving() as received:
        yield received


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, received: Received) -> Iterator[TritonServer]:
    repository = tmp_path_factory.mktemp("models")
    compile_pipeline(NoopLinePipelineConfig(trace=TraceConfig(sample=1.0, otlp_endpoint=received.url)), repository)
    with TritonServer.start(ServerOptions(model_repository=repository, exit_timeout_s=5), timeout_s=100) as server:
        yield server


@pytest.fixture
def client(server: TritonServer) -> Iterator[OmniClient]:
    with OmniClient(server.grpc_url, "noop_line") as client:
        yield client


def test_a_callers_span_is_the_parent_of_the_servers(client: OmniClient, received: Received) -> None:
    for number in (1, 11, 12):
        trace_id, header = parent(number)
        answer = client.chat("hello", traceparent=header, trace=True, sampling={"delay": 0.05})
        trace = answer.finished.trace
        if trace is not None and trace.complete:  # it is not where the machine held a stage up that was to tell
            break
    assert trace is not None and trace.trace_id == trace_id and trace.complete
    spans = received.wait(trace_id)
    assert received.services == {"noop_line"}
    by_id = {span.span_id: span for span in spans}
    assert len(by_id) == len(spans)
    [root] = [span for span in spans if span.parent_span_id == bytes.fromhex(SPAN)]
    assert (root.name, root.kind, root.status.code) == ("noop_line", Span.SPAN_KIND_SERVER, Status.STATUS_CODE_OK)
    assert attributes(list(root.attributes))["omni.request_id"] == trace.id
    assert abs(root.start_time_unix_nano / 1e9 - time.time()) < 60
    for span in spans:
        if span is not root:  # whatever is a span of this trace belongs to the request, and lies within it
            assert span.parent_span_id in by_id
            assert root.start_time_unix_nano <= span.start_time_unix_nano <= span.end_time_unix_nano
            assert span.end_time_unix_nano <= root.end_time_unix_nano + 1000
    stages = {span.name: span for span in spans if span.name in ("a", "b", "c")}
    for lane in trace.lanes[1:]:
        span = stages[lane.stage]
        assert span.parent_span_id == root.span_id
        assert attributes(list(span.attributes))["omni.process"] == lane.process
        seconds = (span.end_time_unix_nano - span.start_time_unix_nano) / 1e9
        # Made from a float's seconds since 1970, nanoseconds are rounded to some hundreds.
        assert seconds == pytest.approx(lane.end - lane.start, rel=1e-3, abs=1e-6)
        children = [child.name for child in spans if child.parent_span_id == span.span_id]
        assert children == [f"{lane.stage} {part.kind}" for part in lane.spans]
    [computing] = [span for span in spans if span.name == "b compute"]
    assert computing.end_time_unix_nano - computing.start_time_unix_nano >= 50e6
    assert {f"{hop.source} to {hop.target} result" for hop in trace.hops if hop.sent is not None and hop.received} <= {
        span.name for span in spans
    }


def test_a_failure_is_an_error_of_its_span(client: OmniClient, received: Received) -> None:
    trace_id, header = parent(2)
    with pytest.raises(RequestFailed, match="as asked"):
        client.chat("hello", traceparent=header, sampling={"fail_stage": "b"})
    [root] = [span for span in received.wait(trace_id) if span.name == "noop_line"]
    assert root.status.code == Status.STATUS_CODE_ERROR and "stage b fails, as asked" in root.status.message


def test_the_header_counts_by_every_front(server: TritonServer, received: Received, client: OmniClient) -> None:
    by_grpc, header = parent(3)
    with grpc.insecure_channel(server.grpc_url) as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        request = infer_request("noop_line", {"text_input": np.array([b"hello"], object)})
        replies = list(stub.ModelStreamInfer(iter([request]), metadata=(("traceparent", header),)))
        assert not any(reply.error_message for reply in replies)
    by_http, header = parent(4)
    with httpx.Client(trust_env=False, timeout=30) as http:
        url = f"http://{server.http_url}/v2/models/noop_line/generate"
        http.post(url, json={"text_input": "hello", "traceparent": header}).raise_for_status()
        by_openai, header = parent(5)
        with HttpServer(create_app(server.grpc_url)) as api:
            body = {"model": "noop_line", "messages": [{"role": "user", "content": "hello"}], "modalities": ["text"]}
            reply = http.post(f"{api.url}/v1/chat/completions", json=body, headers={"traceparent": header})
            reply.raise_for_status()
    for trace_id in (by_grpc, by_http, by_openai):
        [root] = [span for span in received.wait(trace_id) if span.name == "noop_line"]
        assert root.parent_span_id == bytes.fromhex(SPAN)
    unsampled, header = parent(6, "00")
    client.chat("hello", traceparent=header)
    with pytest.raises(NotFound, match="there is no trace"):
        client.trace(unsampled)
    assert unsampled not in received.spans


def test_a_request_that_says_nothing_is_traced_by_the_configured_chance(client: OmniClient, received: Received) -> None:
    assert client.chat("hello").finished.trace is None, "the client did not ask for it"
    trace = client.trace()
    assert trace.state == "completed" and not trace.parent_id
    [root] = [span for span in received.wait(trace.trace_id) if span.name == "noop_line"]
    assert root.parent_span_id == b""


def test_every_client_asks_and_fetches(server: TritonServer) -> None:
    with OmniClient(f"http://{server.http_url}", "noop_line") as client:
        trace = client.chat("hello", trace=True).finished.trace
        assert trace is not None and client.trace(trace.id) == trace
        with pytest.raises(NotFound, match="there is no trace 'nothing'"):
            client.trace("nothing")

    async def fetch() -> Trace:
        async with AsyncOmniClient(server.grpc_url, "noop_line") as client:
            answer = await client.chat("hello", trace=True)
            assert answer.finished.trace is not None
            return await client.trace(answer.finished.trace.trace_id)

    assert asyncio.run(fetch()).complete


def test_omni_trace_draws_and_writes(
    server: TritonServer, client: OmniClient, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace_id, header = parent(7)
    client.chat("hello", traceparent=header)

    server_arguments = ["--url", server.grpc_url, "--pipeline", "noop_line"]
    files = [f"--{kind}={tmp_path / kind}" for kind in ("perfetto", "svg")]
    assert main(["trace", trace_id, "--json", *files, *server_arguments]) == 0
    trace = decode_trace(capsys.readouterr().out)
    assert trace.trace_id == trace_id and [lane.stage for lane in trace.lanes] == ["orchestrator", "a", "b", "c"]
    assert len(json.loads((tmp_path / "perfetto").read_text())["traceEvents"]) > 20
    assert "noop_line" in (tmp_path / "svg").read_text()
    assert main(["trace", "--last", *server_arguments]) == 0
    drawn = capsys.readouterr().out
    assert trace.id in drawn and "from b" in drawn
    assert main(["trace", "nothing", *server_arguments]) == 1
    assert "omni trace: there is no trace 'nothing'" in capsys.readouterr().err
