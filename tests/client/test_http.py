"""The client over HTTP, against a real tritonserver: what it says is what it says over gRPC."""

from __future__ import annotations

import asyncio
import base64
import json
import socket
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread
from typing import Any, ClassVar

import numpy as np
import pytest

from omni_python.client import (
    AsyncOmniClient,
    ConnectionLost,
    DeadlineExceeded,
    Finished,
    InvalidRequest,
    OmniClient,
    RequestFailed,
    ServerUnreachable,
    TextDelta,
    UnknownPipeline,
    _http,
)
from omni_python.client._inputs import RequestOptions, request_inputs
from omni_python.glue.request import parse_request
from omni_python.proto.request import AudioPart, ImagePart, TextPart, VideoPart
from omni_python.proto.wav import pcm16
from omni_python.serve.triton_server import TritonServer
from tests.client.connections import Cable
from tests.client.deltas import told
from tests.e2e import metrics

LONG = {"chunks": 200_000, "chunk_bytes": 8}


@pytest.fixture
def url(noop_server: TritonServer) -> str:
    return f"http://{noop_server.http_url}"


@pytest.fixture
def forward(url: str) -> Iterator[OmniClient]:
    with OmniClient(url, "noop_forward") as client:
        yield client


def test_events_are_those_over_grpc(forward: OmniClient, noop_server: TritonServer) -> None:
    *deltas, last, end = list(forward.stream("x", sampling={"chunks": 300, "chunk_bytes": 5}))
    assert told(deltas) == "xxxxx" * 300 and last == TextDelta('{"chunks":300}')
    assert isinstance(end, Finished) and (end.finish_reason, end.first_audio) == ("stop", None)
    assert end.first_text is not None and 0 < end.first_text < end.total
    with OmniClient(noop_server.grpc_url, "noop_forward") as grpc_client:
        assert forward.info() == grpc_client.info()
        over_grpc = grpc_client.chat("x", sampling={"chunks": 3, "chunk_bytes": 5})
        assert forward.pipelines() == grpc_client.pipelines() == ["noop_forward", "noop_line"]
    answer = forward.chat("x", sampling={"chunks": 3, "chunk_bytes": 5})
    assert (answer.text, answer.finished.usage) == (over_grpc.text, over_grpc.finished.usage)
    assert {stage.stage for stage in answer.finished.stages} == {"a", "b"}
    assert forward.is_ready()


def test_async_events_are_the_same(url: str) -> None:
    async def main() -> None:
        async with AsyncOmniClient(url, "noop_forward") as client:
            assert await client.is_ready()
            assert await client.pipelines() == ["noop_forward", "noop_line"]
            assert (await client.info()).modalities == ("text",)
            *deltas, last, end = [
                event async for event in client.stream("x", sampling={"chunks": 300, "chunk_bytes": 5})
            ]
            assert told(deltas) == "xxxxx" * 300 and last == TextDelta('{"chunks":300}')
            assert isinstance(end, Finished) and end.finish_reason == "stop"
            answers = await asyncio.gather(*(client.chat("x", sampling={"chunks": n}) for n in range(16)))
            assert [answer.text for answer in answers] == [f'{{"chunks":{n}}}' for n in range(16)]
            with pytest.raises(InvalidRequest, match="the prompt is empty"):
                await client.chat()
        async with AsyncOmniClient(url, "nowhere") as client:
            assert not await client.is_ready()
            with pytest.raises(UnknownPipeline, match="nowhere.*ready at http.*: noop_forward, noop_line$"):
                await client.chat("x")

    asyncio.run(main())


def test_failures(url: str, forward: OmniClient) -> None:
    with pytest.raises(InvalidRequest, match="the prompt is empty"):
        forward.chat()
    with OmniClient(url, "noop_line") as line:
        for stage in "abc":
            with pytest.raises(RequestFailed, match=f"^NoopFailure: stage {stage} fails, as asked$"):
                list(line.stream("x", sampling={"fail_stage": stage}))
        with pytest.raises(DeadlineExceeded):  # the stage sleeps on for the rest of its delay
            line.chat("x", sampling={"delay": 1, "timeout_ms": 200})
    with OmniClient(url, "nowhere") as nowhere:
        assert not nowhere.is_ready()
        with pytest.raises(UnknownPipeline, match="nowhere.*ready at http.*: noop_forward, noop_line$"):
            nowhere.chat("x")
    with pytest.raises(InvalidRequest, match="whose role must then be 'user'"):
        forward.chat(messages=[{"role": "assistant", "content": "x"}], images=[b"x"])


def test_nobody_listens() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    with OmniClient(f"http://127.0.0.1:{port}", "noop_line") as client:
        assert not client.is_ready()
        for ask in (client.pipelines, lambda: client.chat("x")):
            with pytest.raises(ServerUnreachable, match=f"no Triton server answers at http://127.0.0.1:{port}"):
                ask()


class _Page(BaseHTTPRequestHandler):
    """What is no Triton server: it says the same to everything."""

    reply: ClassVar[tuple[int, bytes]]

    def do_GET(self) -> None:
        status, body = self.reply
        self.send_response(status)
        self.end_headers()
        self.wfile.write(body)

    do_POST = do_GET

    def log_message(self, *_: object) -> None:
        pass


@pytest.mark.parametrize(
    "reply",
    [(404, b"<html>"), (404, b'{"error": {"message": "no such path"}}'), (200, b"data: <html>\n\n"), (200, b"[1")],
)
def test_somebody_else_listens(reply: tuple[int, bytes]) -> None:
    with HTTPServer(("127.0.0.1", 0), type("Page", (_Page,), {"reply": reply})) as server:
        Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}"
        with OmniClient(url, "noop_line") as client:
            with pytest.raises(ServerUnreachable, match=f"what answers at {url} is no Triton server"):
                client.pipelines()
            with pytest.raises(ServerUnreachable):
                client.chat("x")

        async def ask() -> None:
            async with AsyncOmniClient(url, "noop_line") as client:
                await client.chat("x")

        with pytest.raises(ServerUnreachable):
            asyncio.run(ask())
        server.shutdown()


def test_leaving_cancels_the_request(forward: OmniClient, noop_server: TritonServer) -> None:
    metrics.wait_empty(noop_server, "noop_forward")
    before = metrics.aborted(noop_server, "noop_forward")
    for _ in forward.stream("x", sampling=LONG):
        break
    metrics.wait_left(noop_server, "noop_forward", before + 1)


def test_connection_cut_in_the_middle(noop_server: TritonServer) -> None:
    before = metrics.aborted(noop_server, "noop_forward")
    with (
        Cable(noop_server.host, noop_server.http_port) as cable,
        OmniClient(f"http://{cable.url}", "noop_forward") as client,
    ):
        events = client.stream("x", sampling=LONG)
        next(events)
        cable.cut()
        with pytest.raises(ConnectionLost):
            list(events)
    metrics.wait_left(noop_server, "noop_forward", before + 1)


def test_body_says_what_the_tensors_say() -> None:
    """The server's parser reads the same request from both."""
    rng = np.random.default_rng()
    options: RequestOptions = {
        "audios": [rng.bytes(50)],
        "images": [rng.bytes(60), rng.bytes(6)],
        "videos": [rng.bytes(70)],
        "modalities": ["text", "audio"],
        "voice": "ü",
        "sampling": {"temperature": 0.5},
    }
    chat = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]
    more: list[tuple[str | None, RequestOptions]] = [
        ("What?\n", options),
        ("What?\n", {"modalities": ["text"]}),
        (None, {**options, "messages": chat}),
        (None, {"images": [b"x"]}),
        ("x", {"audio": rng.uniform(-1, 1, 99), "audio_sample_rate": 8000}),
    ]
    for text, given in more:
        inputs = request_inputs(text, given, stream=True)
        over_grpc = parse_request(inputs).request
        over_http = parse_request(tensors(json.loads(_http.body(inputs)))).request
        assert [(message.role, list(map(content, message.content))) for message in over_http.messages] == [
            (message.role, list(map(content, message.content))) for message in over_grpc.messages
        ]
        assert (over_http.modalities, over_http.voice, over_http.sampling, over_http.stream) == (
            over_grpc.modalities,
            over_grpc.voice,
            over_grpc.sampling,
            over_grpc.stream,
        )


def tensors(fields: dict[str, Any]) -> dict[str, np.ndarray]:
    """What Triton makes of `generate`'s JSON."""
    kinds = {"audio": np.float32, "audio_sample_rate": np.int32, "stream": np.bool_}
    listed = {name: value if isinstance(value, list) else [value] for name, value in fields.items()}
    return {
        name: np.array(values, kinds[name]) if name in kinds else np.array([v.encode() for v in values], object)
        for name, values in listed.items()
    }


def content(part: Any) -> Any:
    match part:
        case TextPart(text=text):
            return text
        case AudioPart(samples=samples) if samples is not None:
            return AudioPart, samples.tolist(), part.sample_rate
        case AudioPart(data=data) | ImagePart(data=data) | VideoPart(data=data) if data is not None:
            return type(part), data.tobytes()
    raise AssertionError(part)


def test_speech_is_that_of_grpc_in_16_bits() -> None:
    samples = np.random.default_rng().uniform(-1, 1, 777).astype(np.float32)
    event = {"audio_base64": base64.b64encode(pcm16(samples)).decode(), "audio_sample_rate": 24_000}
    outputs = _http.outputs(event)
    assert outputs["audio_output"].dtype == np.float32 and outputs["audio_sample_rate"][0] == 24_000
    np.testing.assert_allclose(outputs["audio_output"], samples, atol=0.51 / 32767)


def test_events_come_in_any_pieces() -> None:
    events = [{"text_output": "ü\n{}"}, {"error": "data: x"}, {"n": 1}]
    stream = b"".join(b"data: " + json.dumps(event, ensure_ascii=False).encode() + b"\n\n" for event in events)
    for size in (1, 2, 7, 1000):
        replies = _http.Replies()
        pieces = [stream[start : start + size] for start in range(0, len(stream), size)]
        assert [event for piece in pieces for event in replies.read(piece)] == events
