"""Single events of the realtime API: items, what is refused and to whom, clients that are slow."""

from __future__ import annotations

import asyncio
import base64
import time
from typing import Any

import numpy as np
import openai
import psutil
import pytest
import websockets.exceptions
import websockets.sync.client
from openai.resources.realtime.realtime import RealtimeConnection

from omni_python.client import AsyncOmniClient
from omni_python.proto.info import PipelineInfo
from omni_python.serve.openai.realtime import server_events as told
from omni_python.serve.openai.realtime.response import Plan, Response
from omni_python.serve.openai.realtime.session import Session
from omni_python.serve.openai.server import HttpServer
from omni_python.serve.triton_server import TritonServer
from tests.e2e import metrics
from tests.serve.openai.realtime import LONG, MODEL, STOP, b64, joined, say, until
from tests.waiting import wait_until


def test_items(connection: RealtimeConnection, question: bytes) -> None:
    first = say(connection, "One.")
    item: Any = {
        "id": "mine",
        "type": "message",
        "role": "user",
        "content": [
            {"type": "input_audio", "audio": b64(question)},
            {"type": "input_image", "image_url": "data:image/png;base64,AAAA"},
        ],
    }
    connection.conversation.item.create(item=item, previous_item_id="root")
    added: Any = until(connection, "conversation.item.done")[0]
    assert added.previous_item_id is None and added.item.id == "mine" and added.item.content[0].audio is None
    connection.conversation.item.retrieve(item_id="mine")
    retrieved: Any = connection.recv()
    assert retrieved.type == "conversation.item.retrieved"
    assert base64.b64decode(retrieved.item.content[0].audio) == question
    connection.conversation.item.delete(item_id="mine")
    assert connection.recv().type == "conversation.item.deleted"
    third: Any = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Three."}]}
    connection.conversation.item.create(item=third, previous_item_id=first)
    assert until(connection, "conversation.item.done")[-1].previous_item_id == first


def test_truncating_what_was_spoken(connection: RealtimeConnection, sdk: openai.OpenAI) -> None:
    say(connection, "Hello.")
    connection.response.create()
    events = until(connection)
    item = events[-1].response.output[0]
    milliseconds = len(joined(events, "response.output_audio.delta")) // 48
    connection.conversation.item.truncate(item_id=item.id, content_index=0, audio_end_ms=milliseconds + 1)
    error: Any = connection.recv()
    assert error.error.param == "audio_end_ms" and f"{milliseconds} ms" in error.error.message
    connection.conversation.item.truncate(item_id=item.id, content_index=0, audio_end_ms=milliseconds // 2)
    assert connection.recv().type == "conversation.item.truncated"
    connection.conversation.item.retrieve(item_id=item.id)
    kept = connection.recv().item.content[0].transcript  # type: ignore[union-attr]
    assert kept is not None and item.content[0].transcript.startswith(kept)
    assert len(kept) <= 0.5 * len(item.content[0].transcript) + 1


NOISE = np.random.default_rng(5).bytes(2 * 24000 * 60)
"""A minute of it: 3.8 MB as an event."""

REFUSED: list[tuple[dict[str, Any], str | None, str, str]] = [
    (
        {"type": "session.update", "session": {"type": "realtime", "audio": {"output": {"voice": "nobody"}}}},
        "session.audio.output.voice",
        "invalid_value",
        "unknown voice 'nobody'; valid: aiden",
    ),
    (
        {"type": "response.create", "response": {"audio": {"output": {"voice": "nobody"}}}},
        "response.audio.output.voice",
        "invalid_value",
        "unknown voice 'nobody'; valid: aiden",
    ),
    ({"type": "output_audio_buffer.clear"}, "type", "invalid_event_type", "'response.cancel'"),
    ({}, "type", "invalid_event_type", "type"),
    ({"type": "session.update", "session": {"type": "realtime", "tools": []}}, "session.tools", "unsupported", "tools"),
    (
        {"type": "session.update", "session": {"type": "realtime", "model": "gpt-realtime"}},
        "session.model",
        "invalid_value",
        "cannot be changed",
    ),
    (
        {
            "type": "session.update",
            "session": {"type": "realtime", "audio": {"input": {"turn_detection": {"type": "semantic_vad"}}}},
        },
        "session.audio.input.turn_detection.type",
        "invalid_value",
        "'server_vad'",
    ),
    ({"type": "input_audio_buffer.append", "audio": "?"}, "audio", "invalid_value", "base64"),
    ({"type": "input_audio_buffer.append", "audio": "YWJj"}, "audio", "invalid_value", "16-bit"),
    ({"type": "input_audio_buffer.append"}, "audio", "missing_required_parameter", "audio"),
    ({"type": "input_audio_buffer.commit"}, None, "input_audio_buffer_commit_empty", "at least 100 ms"),
    ({"type": "conversation.item.create", "item": {"type": "function_call"}}, "item", "invalid_value", "'message'"),
    ({"type": "conversation.item.retrieve", "item_id": "no"}, "item_id", "item_not_found", "'no'"),
    ({"type": "conversation.item.delete", "item_id": "no"}, "item_id", "item_not_found", "'no'"),
    (
        {"type": "conversation.item.truncate", "item_id": "no", "content_index": 0, "audio_end_ms": 1},
        "item_id",
        "item_not_found",
        "'no'",
    ),
    ({"type": "response.cancel"}, "response_id", "response_cancel_not_active", "no such running response"),
    (
        {"type": "response.create", "response": {"tool_choice": "auto"}},
        "response.tool_choice",
        "unsupported",
        "tool_choice",
    ),
    (
        {"type": "response.create", "response": {"input": [{"type": "item_reference", "id": "no"}]}},
        "item_id",
        "item_not_found",
        "'no'",
    ),
]


def test_refused_events(connection: RealtimeConnection) -> None:
    for number, (event, param, code, message) in enumerate(REFUSED):
        sent: Any = {**event, "event_id": f"mine_{number}"}
        connection.send(sent)
        answer: Any = connection.recv()
        assert answer.type == "error", answer
        error = answer.error
        assert (error.type, error.code, error.param) == ("invalid_request_error", code, param), error
        assert message in error.message and error.event_id == f"mine_{number}"
    for broken in ('{"type": ', "[]", b"\x00"):
        connection._connection.send(broken)
        answer = connection.recv()
        assert answer.type == "error" and answer.error.event_id is None
    say(connection, "The session goes on.")


def test_what_the_pipeline_refuses(connection: RealtimeConnection) -> None:
    say(connection, "Hello.")
    image: Any = {"type": "input_image", "image_url": "data:image/png;base64,AAAA"}
    item: Any = {"type": "message", "role": "user", "content": [image]}
    connection.response.create(event_id="ask", response={"input": [item]})
    created, error, done = until(connection)
    assert created.type == "response.created"
    assert error.error.event_id == "ask" and "image" in error.error.message
    assert done.response.status == "failed" and done.response.output == []
    assert done.response.status_details.error.code == "invalid_request"


def test_a_pipeline_that_cannot_speak_writes(realtime: openai.OpenAI) -> None:
    with realtime.realtime.connect(model="qwen3_omni_text") as connection:
        created: Any = connection.recv()
        assert created.session.output_modalities == ["text"]
        connection.response.create(response={"output_modalities": ["audio"], "input": [STOP]})
        refused: Any = connection.recv()
        assert refused.error.param == "response.output_modalities" and "cannot speak" in refused.error.message
        connection.response.create(response={"max_output_tokens": 3, "input": [STOP]})
        assert joined(until(connection), "response.output_text.delta")


def test_one_response_at_a_time(aborted: None, connection: RealtimeConnection) -> None:
    say(connection, "Hello.")
    connection.response.create(response=LONG)
    until(connection, "response.output_audio_transcript.delta")
    connection.response.create(event_id="second")
    [*_, refused] = until(connection, "error")
    assert refused.error.code == "conversation_already_has_active_response" and refused.error.event_id == "second"
    connection.response.cancel()
    assert until(connection)[-1].response.status == "cancelled"


def test_who_is_let_in(api: HttpServer, realtime: openai.OpenAI) -> None:
    with (
        pytest.raises(websockets.exceptions.InvalidStatus) as refused,
        realtime.realtime.connect(model="gpt-realtime"),
    ):
        pass
    assert refused.value.response.status_code == 404
    assert b"qwen3_omni, qwen3_omni_text" in refused.value.response.body
    with (
        pytest.raises(websockets.exceptions.InvalidStatus) as refused,
        realtime.realtime.connect(model=MODEL, extra_query={"intent": "transcription"}),
    ):
        pass
    assert refused.value.response.status_code == 400 and b"'intent'" in refused.value.response.body
    url = f"ws://{api.host}:{api.port}/v1/realtime?model={MODEL}"
    browser: Any = ["realtime", "openai-insecure-api-key.none"]
    with websockets.sync.client.connect(url, subprotocols=browser, proxy=None) as socket:
        assert socket.subprotocol == "realtime"


def test_a_slow_client_costs_no_memory(connection: RealtimeConnection) -> None:
    item: Any = {
        "id": "big",
        "type": "message",
        "role": "user",
        "content": [{"type": "input_audio", "audio": b64(NOISE)}],
    }
    connection.conversation.item.create(item=item)
    until(connection, "conversation.item.done")
    connection.conversation.item.retrieve(item_id="big")
    assert len(connection.recv_bytes()) > 3_800_000
    before = psutil.Process().memory_info().rss
    socket = connection._connection
    socket.recv_messages.pause()  # as a client that does not read
    for _ in range(16):
        connection.conversation.item.retrieve(item_id="big")
    time.sleep(1)
    assert psutil.Process().memory_info().rss - before < 32 << 20, "the server keeps what is not read"
    socket.recv_messages.resume()
    for _ in range(16):
        assert connection.recv().type == "conversation.item.retrieved"


def test_a_client_that_reads_nothing_is_gone(
    aborted: None, realtime: openai.OpenAI, monkeypatch: pytest.MonkeyPatch, server: TritonServer
) -> None:
    monkeypatch.setattr("omni_python.serve.openai.realtime.connection.SEND_S", 0.5)
    sound = {"type": "input_audio", "audio": b64(NOISE)}
    item: Any = {"id": "big", "type": "message", "role": "user", "content": [sound]}
    few: Any = {"max_size": None, "max_queue": 1}  # it takes no more from its socket than is asked for, and one
    with realtime.realtime.connect(model=MODEL, websocket_connection_options=few) as connection:
        connection.conversation.item.create(item=item)
        connection.response.create(response={**LONG, "input": [STOP]})
        until(connection, "response.output_audio_transcript.delta")
        wait_until(lambda: metrics.in_flight(server, MODEL), 20, 0.05)
        for _ in range(8):
            connection.conversation.item.retrieve(item_id="big")
        wait_until(lambda: not metrics.in_flight(server, MODEL), 20, 0.05)
        with pytest.raises(websockets.exceptions.ConnectionClosed):
            until(connection)


def test_an_event_that_is_too_large_ends_the_session(connection: RealtimeConnection) -> None:
    connection.input_audio_buffer.append(audio=b64(bytes(11 << 20)))
    connection.input_audio_buffer.clear()
    assert connection.recv().type == "input_audio_buffer.cleared"
    # The socket's own limit; whether its close frame arrives depends on how much was on its way.
    with pytest.raises(websockets.exceptions.ConnectionClosed):
        connection.input_audio_buffer.append(audio=b64(bytes(13 << 20)))
        connection.recv()


@pytest.mark.parametrize(("kind", "status"), [(None, "cancelled"), (told.ErrorEvent, "failed")])
def test_cancelling_at_the_edges(kind: type | None, status: str) -> None:
    """Before the request, and after it failed."""

    async def run() -> list[told.ServerEvent]:
        sent = []

        async def send(event: told.ServerEvent) -> None:
            sent.append(event)
            if kind is not None and isinstance(event, kind):
                response.cancel("client_cancelled")

        async with AsyncOmniClient("127.0.0.1:9") as client:
            asked = [{"role": "user", "content": "Hello."}]
            response = Response(Plan(asked, Session.new(MODEL, PipelineInfo()), None), client, send)
            if kind is None:
                response.cancel("turn_detected")
            await response.run()
        return sent

    last = asyncio.run(run())[-1]
    assert isinstance(last, told.ResponseDone) and last.response.status == status
