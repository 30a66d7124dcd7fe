"""Bodies that would cost much: refused before they are looked at, or read beside the event loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from typing import Annotated, Any, ClassVar

import httpx
import pytest
from fastapi import FastAPI
from pydantic import BaseModel, field_validator

from omni_python.proto.json_size import MAX_JSON_VALUES
from omni_python.proto.request import MAX_PARTS
from omni_python.serve.openai.app import create_app
from omni_python.serve.openai.bodies import LARGE_BODY, json_body
from omni_python.serve.openai.server import HttpServer
from tests.serve.openai.malformed import CHAT, JSON, MODEL, SPEECH

EMPTY = b'{"type":"text","text":""}'


@pytest.fixture(scope="module")
def http() -> Iterator[httpx.Client]:
    """Of a server whose Triton is not there."""
    with (
        HttpServer(create_app("127.0.0.1:9")) as server,
        httpx.Client(base_url=server.url, trust_env=False, timeout=60) as client,
    ):
        yield client


def chat_of(*parts: int) -> bytes:
    """A body of messages with so many empty parts."""
    messages = [b'{"role":"user","content":[%s]}' % b",".join([EMPTY] * count) for count in parts]
    return b'{"model":"%s","messages":[%s]}' % (MODEL.encode(), b",".join(messages))


def refused(http: httpx.Client, path: str, content: bytes, status: int = 400) -> Any:
    reply = http.post(path, content=content, headers=JSON)
    assert reply.status_code == status, reply.text[:500]
    return reply.json()["error"]


@pytest.mark.parametrize(
    "parts", [(20_000,), (MAX_PARTS + 1,), (0,) * (MAX_PARTS + 1)], ids=["20000", "one message", "empty messages"]
)
def test_too_many_parts_are_refused(http: httpx.Client, parts: tuple[int, ...]) -> None:
    error = refused(http, CHAT, chat_of(*parts))
    found = max(len(parts), *parts)
    limit = f"has {found} messages and parts; at most {MAX_PARTS} are accepted"
    assert (error["param"], error["code"]) == ("messages", "invalid_value") and limit in error["message"]


def test_parts_are_counted_before_they_are_looked_at(http: httpx.Client) -> None:
    messages = b",".join([b"0"] * (MAX_PARTS + 1))
    error = refused(http, CHAT, b'{"model":"%s","messages":[%s]}' % (MODEL.encode(), messages))
    assert f"at most {MAX_PARTS} are accepted" in error["message"] and error["param"] == "messages"


def test_as_many_parts_as_may_be(http: httpx.Client) -> None:
    """Triton, which would answer, is missing."""
    assert refused(http, CHAT, chat_of(MAX_PARTS - 1, 1), 503)["code"] == "server_unreachable"


@pytest.mark.parametrize(
    ("path", "content"),
    [
        (CHAT, chat_of(500_000)),
        (CHAT, b'{"metadata": {%s}}' % b",".join(b'"%d": ""' % key for key in range(MAX_JSON_VALUES + 1))),
        (SPEECH, b"[" + b"0," * MAX_JSON_VALUES + b"0]"),
    ],
    ids=["parts", "metadata", "numbers"],
)
def test_what_would_become_too_many_objects_is_refused_unread(http: httpx.Client, path: str, content: bytes) -> None:
    error = refused(http, path, content, 413)
    assert error["code"] == "too_large" and f"more than {MAX_JSON_VALUES} values" in error["message"]


class Words(BaseModel):
    """Notes on which threads it is checked."""

    checked_on: ClassVar[list[int]] = []
    words: str

    @field_validator("words")
    @classmethod
    def _noted(cls, value: str) -> str:
        cls.checked_on.append(threading.get_ident())
        return value


def test_large_bodies_do_not_keep_the_event_loop() -> None:
    app = FastAPI()

    @app.post("/words")
    async def words(body: Annotated[Words, json_body(Words)]) -> tuple[int, int]:
        return threading.get_ident(), len(body.words)

    async def loop_and_count(count: int) -> list[int]:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test") as client:
            reply: list[int] = (await client.post("/words", json={"words": "x" * count})).json()
            return reply

    for count, beside in ((LARGE_BODY, True), (1, False)):
        loop, found = asyncio.run(loop_and_count(count))
        assert found == count and (Words.checked_on[-1] != loop) == beside
