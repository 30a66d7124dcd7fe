"""What the tests of the realtime API share."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import openai
import pytest
from openai.resources.realtime.realtime import RealtimeConnection

from omni_python.proto.wav import pcm16
from omni_python.serve.openai.realtime.audio import Resampler
from omni_python.serve.openai.server import HttpServer
from omni_python.serve.triton_server import TritonServer
from tests.e2e import metrics
from tests.serve.openai.test_encoding import decoded

MODEL = "qwen3_omni"
FRAME = 1920
"""Samples of one codec frame."""
TALKER = {"max_tokens": 20, "temperature": 0}
SHORT: Any = {
    "type": "realtime",
    "max_output_tokens": 12,
    "talker": TALKER,
    "audio": {"input": {"turn_detection": None}},
}
LONG: Any = {"max_output_tokens": 4000, "ignore_eos": True, "talker": {"ignore_eos": True, "max_tokens": 4000}}
"""A response that is still running when the test ends it."""
STOP: Any = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Stop."}]}


@pytest.fixture
def realtime(api: HttpServer) -> Iterator[openai.OpenAI]:
    url = f"{api.host}:{api.port}/v1"
    with openai.OpenAI(base_url=f"http://{url}", websocket_base_url=f"ws://{url}", api_key="none") as client:
        yield client


@pytest.fixture
def connection(realtime: openai.OpenAI) -> Iterator[RealtimeConnection]:
    """A session that answers shortly and finds no turns."""
    with realtime.realtime.connect(model=MODEL, websocket_connection_options={"max_size": None}) as connection:
        assert connection.recv().type == "session.created"
        connection.session.update(session=SHORT)
        assert connection.recv().type == "session.updated"
        yield connection


@pytest.fixture(scope="session")
def question(repo_root: Path) -> bytes:
    """A spoken question, int16 at 24 kHz."""
    file = repo_root / "backends/omni_python/commands/data/question.flac"
    samples, rate = decoded("flac", file.read_bytes(), 0)
    resampler = Resampler(rate, 24000)
    return pcm16(np.concatenate([resampler.push(samples.astype(np.float32)), resampler.end()]))


@pytest.fixture
def aborted(server: TritonServer) -> Iterator[None]:
    """The test ends exactly one request before its end, and leaves nothing in any stage."""
    metrics.wait_empty(server, MODEL)
    before = metrics.aborted(server, MODEL)
    yield
    metrics.wait_left(server, MODEL, before + 1)


def b64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def until(connection: RealtimeConnection, kind: str = "response.done") -> list[Any]:
    """The events up to one of this kind."""
    events: list[Any] = []
    while not events or events[-1].type != kind:
        events.append(connection.recv())
    return events


def kinds(events: list[Any]) -> list[str]:
    """Their types, repeated ones once."""
    types = [event.type for event in events]
    return [kind for i, kind in enumerate(types) if i == 0 or types[i - 1] != kind]


def conform(events: list[Any]) -> None:
    """They have what the SDK's types say, which it does not check itself."""
    for event in events:
        type(event).model_validate(event.to_dict(mode="json"))


def joined(events: list[Any], kind: str) -> Any:
    """What the deltas of a kind make; samples for audio."""
    deltas = [event.delta for event in events if event.type == kind]
    return b"".join(map(base64.b64decode, deltas)) if kind == "response.output_audio.delta" else "".join(deltas)


def say(connection: RealtimeConnection, text: str) -> str:
    """A user's item of text; its id."""
    item: Any = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": text}]}
    connection.conversation.item.create(item=item)
    added, done = connection.recv(), connection.recv()
    assert (added.type, done.type) == ("conversation.item.added", "conversation.item.done")
    return str(added.item.id)  # type: ignore[union-attr]


def chat(sdk: openai.OpenAI, messages: list[Any], speaks: bool = False) -> Any:
    """What chat completions answers to the same."""
    audio: Any = {"modalities": ["text", "audio"], "audio": {"voice": "chelsie", "format": "pcm16"}} if speaks else {}
    return sdk.chat.completions.create(
        model=MODEL, messages=messages, max_completion_tokens=12, extra_body={"talker": TALKER}, **audio
    )
