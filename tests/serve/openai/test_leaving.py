"""Clients that leave before there is anything of their answer."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from omni_python.client import Event, TextDelta
from omni_python.proto.info import PipelineInfo
from omni_python.serve.openai import app
from omni_python.serve.openai.server import HttpServer
from omni_python.serve.triton_server import TritonServer
from tests.e2e import metrics
from tests.serve.openai.realtime import LONG, MODEL
from tests.waiting import wait_until

MESSAGES = [{"role": "user", "content": "Tell me a long story."}]


class Slow:
    """A pipeline, by way of the client's interface, whose answers never come."""

    def __init__(self) -> None:
        self.asked = threading.Event()
        self.cancelled = threading.Event()

    def of(self, pipeline: str) -> Slow:
        return self

    async def close(self) -> None:
        pass

    async def info(self) -> PipelineInfo:
        return PipelineInfo(("text", "audio"), ("ethan",), "ethan", 24000)

    async def chat(self, **options: Any) -> None:
        await self._answer()

    async def stream(self, **options: Any) -> AsyncIterator[Event]:
        await self._answer()
        yield TextDelta("never")

    async def _answer(self) -> None:
        self.asked.set()
        try:
            await asyncio.sleep(300)
        except asyncio.CancelledError:
            self.cancelled.set()
            raise


@contextmanager
def asking(front: HttpServer, path: str, body: dict[str, Any]) -> Iterator[None]:
    """A client that has asked, until the end of the block."""
    data = json.dumps(body).encode()
    head = (
        f"POST {path} HTTP/1.1\r\nHost: here\r\nContent-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n"
    )
    with socket.create_connection((front.host, front.port)) as connection:
        connection.sendall(head.encode() + data)
        yield


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", {"model": MODEL, "messages": MESSAGES}),
        ("/v1/chat/completions", {"model": MODEL, "messages": MESSAGES, "stream": True}),
        ("/v1/audio/speech", {"model": MODEL, "input": "A long story.", "voice": "ethan"}),
    ],
    ids=["whole", "stream", "speech"],
)
def test_leaving_before_the_first_piece_cancels(
    path: str, body: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = Slow()
    monkeypatch.setattr(app, "AsyncOmniClient", lambda url: slow)
    with HttpServer(app.create_app("nowhere:1")) as front:
        with asking(front, path, body):
            assert slow.asked.wait(30)
            assert not slow.cancelled.is_set()
        assert slow.cancelled.wait(30)


def test_leaving_before_a_whole_answer_aborts_the_request(api: HttpServer, server: TritonServer, aborted: None) -> None:
    body = {"model": MODEL, "messages": MESSAGES, "modalities": ["text", "audio"], "audio": {"format": "wav"}}
    sampling = {"max_completion_tokens": LONG["max_output_tokens"], "ignore_eos": True, "talker": LONG["talker"]}
    with asking(api, "/v1/chat/completions", {**body, **sampling}):
        wait_until(lambda: metrics.read(server, "omni_requests_in_flight", pipeline=MODEL) >= 1, timeout=60)
