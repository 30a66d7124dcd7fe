"""Turns of the realtime API through the official SDK, unmodified, against the real server."""

from __future__ import annotations

import asyncio
import base64
from pathlib import Path
from typing import Any

import numpy as np
import openai
import pytest
from openai.resources.realtime.realtime import RealtimeConnection

from omni_python.proto.wav import wav_of_pcm16
from omni_python.serve.openai.server import HttpServer
from omni_python.serve.triton_server import TritonServer
from tests.e2e import metrics
from tests.serve.openai.realtime import FRAME, LONG, MODEL, SHORT, STOP, b64, chat, conform, joined, kinds, say, until
from tests.waiting import wait_until


def test_a_text_turn(connection: RealtimeConnection, sdk: openai.OpenAI) -> None:
    say(connection, "What is the weather like today?")
    connection.response.create(response={"output_modalities": ["text"], "instructions": "Be brief."})
    events = until(connection)
    expected = chat(
        sdk,
        [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": [{"type": "text", "text": "What is the weather like today?"}]},
        ],
    )
    text = expected.choices[0].message.content
    conform(events)
    assert kinds(events) == [
        "response.created",
        "response.output_item.added",
        "conversation.item.added",
        "response.content_part.added",
        "response.output_text.delta",
        "response.output_text.done",
        "response.content_part.done",
        "conversation.item.done",
        "response.output_item.done",
        "response.done",
    ]
    assert joined(events, "response.output_text.delta") == text == events[-5].text
    response = events[-1].response
    assert response.output[0].content[0].text == text and response.output[0].status == "incomplete"
    assert response.status == "incomplete" and response.status_details.reason == "max_output_tokens"
    assert expected.choices[0].finish_reason == "length"
    assert response.usage.input_tokens == expected.usage.prompt_tokens
    assert response.usage.output_tokens == expected.usage.completion_tokens == 12


def test_an_audio_turn_with_the_async_sdk(api: HttpServer, sdk: openai.OpenAI, question: bytes) -> None:
    async def ask() -> list[Any]:
        url = f"{api.host}:{api.port}/v1"
        client = openai.AsyncOpenAI(base_url=f"http://{url}", websocket_base_url=f"ws://{url}", api_key="none")
        async with client, client.realtime.connect(model=MODEL) as connection:
            audio = {"input": {"turn_detection": None}, "output": {"voice": "chelsie"}}
            session: Any = {**SHORT, "audio": audio}
            await connection.session.update(session=session)
            for start in range(0, len(question), 9600):
                await connection.input_audio_buffer.append(audio=b64(question[start : start + 9600]))
            await connection.input_audio_buffer.commit()
            await connection.response.create()
            events: list[Any] = []
            async for event in connection:
                events.append(event)
                if event.type == "response.done":
                    break
            return events

    events = asyncio.run(ask())
    wav = b64(wav_of_pcm16(question, 24000))
    heard = {"role": "user", "content": [{"type": "input_audio", "input_audio": {"data": wav, "format": "wav"}}]}
    message = chat(sdk, [heard], speaks=True).choices[0].message
    conform(events)
    assert kinds(events)[:7] == [
        "session.created",
        "session.updated",
        "input_audio_buffer.committed",
        "conversation.item.added",
        "conversation.item.done",
        "response.created",
        "response.output_item.added",
    ]
    ends = [kind for kind in kinds(events) if kind.endswith("done")]
    assert ends == [
        "conversation.item.done",
        "response.output_audio.done",
        "response.output_audio_transcript.done",
        "response.content_part.done",
        "conversation.item.done",
        "response.output_item.done",
        "response.done",
    ]
    assert joined(events, "response.output_audio_transcript.delta") == message.audio.transcript
    spoken, expected = joined(events, "response.output_audio.delta"), base64.b64decode(message.audio.data)
    assert len(spoken) == len(expected) > 0
    # A stream's windows of the vocoder round otherwise than one whole.
    np.testing.assert_allclose(np.frombuffer(spoken, "<i2"), np.frombuffer(expected, "<i2"), atol=1.1)
    used = events[-1].response.usage.output_token_details
    assert (used.text_tokens, used.audio_tokens) == (12, round(len(spoken) / 2 / FRAME))


def test_the_second_turn_knows_the_first(connection: RealtimeConnection, sdk: openai.OpenAI) -> None:
    say(connection, "Hello.")
    connection.response.create()
    spoken = until(connection)[-1].response.output[0].content[0].transcript
    say(connection, "And tomorrow?")
    connection.response.create(response={"output_modalities": ["text"]})
    events = until(connection)
    history = [
        {"role": "user", "content": [{"type": "text", "text": "Hello."}]},
        {"role": "assistant", "content": spoken},
        {"role": "user", "content": [{"type": "text", "text": "And tomorrow?"}]},
    ]
    expected = chat(sdk, history).choices[0].message.content
    assert joined(events, "response.output_text.delta") == expected != spoken != ""


def test_text_sound_and_a_picture_in_one_item(
    connection: RealtimeConnection, sdk: openai.OpenAI, question: bytes, repo_root: Path
) -> None:
    photo = b64((repo_root / "backends/omni_python/commands/data/photo.jpg").read_bytes())
    url, wav = f"data:image/jpeg;base64,{photo}", b64(wav_of_pcm16(question, 24000))
    content = [
        {"type": "input_text", "text": "Look:"},
        {"type": "input_image", "image_url": url},
        {"type": "input_audio", "audio": b64(question)},
    ]
    same = [
        {"type": "text", "text": "Look:"},
        {"type": "image_url", "image_url": {"url": url}},
        {"type": "input_audio", "input_audio": {"data": wav, "format": "wav"}},
    ]
    item: Any = {"type": "message", "role": "user", "content": content}
    connection.conversation.item.create(item=item)
    connection.response.create(response={"output_modalities": ["text"]})
    answer = joined(until(connection), "response.output_text.delta")
    assert answer == chat(sdk, [{"role": "user", "content": same}]).choices[0].message.content


def test_a_response_out_of_the_conversation(connection: RealtimeConnection, sdk: openai.OpenAI) -> None:
    first = say(connection, "Hello.")
    say(connection, "And tomorrow?")
    own: Any = {"type": "message", "role": "system", "content": [{"type": "input_text", "text": "Sing."}]}
    options: Any = {
        "conversation": "none",
        "input": [own, {"type": "item_reference", "id": first}],
        "output_modalities": ["text"],
        "metadata": {"topic": "song"},
    }
    connection.response.create(response=options)
    events = until(connection)
    assert "conversation.item.added" not in kinds(events)
    assert events[-1].response.metadata == {"topic": "song"} and events[-1].response.conversation_id is None
    same = [
        {"role": role, "content": [{"type": "text", "text": t}]}
        for role, t in (("system", "Sing."), ("user", "Hello."))
    ]
    assert joined(events, "response.output_text.delta") == chat(sdk, same).choices[0].message.content


@pytest.mark.parametrize("wait_for", ["response.created", "response.output_audio_transcript.delta"])
def test_cancelling(
    aborted: None, connection: RealtimeConnection, wait_for: str, sdk: openai.OpenAI, server: TritonServer
) -> None:
    say(connection, "Tell me a long story.")
    connection.response.create(response=LONG)
    said = joined(until(connection, wait_for), "response.output_audio_transcript.delta")
    if wait_for == "response.created":
        wait_until(lambda: metrics.in_flight(server, MODEL), period=0.05)
    connection.response.cancel()
    connection.response.create(response={"output_modalities": ["text"], "input": [STOP]})
    events = until(connection)
    response = events[-1].response
    assert response.status == "cancelled" and response.status_details.reason == "client_cancelled"
    said += joined(events, "response.output_audio_transcript.delta")
    if response.output:
        assert response.output[0].status == "incomplete" and response.output[0].content[0].transcript == said
    after = until(connection)
    assert (
        joined(after, "response.output_text.delta")
        == chat(sdk, [{"role": "user", "content": "Stop."}]).choices[0].message.content
    )


def test_leaving_in_the_middle(aborted: None, realtime: openai.OpenAI) -> None:
    with realtime.realtime.connect(model=MODEL) as connection:
        connection.response.create(response={**LONG, "input": [STOP]})
        until(connection, "response.output_audio_transcript.delta")


def test_other_rates_and_speeds(connection: RealtimeConnection) -> None:
    say(connection, "Hello.")
    connection.response.create(response={"conversation": "none"})
    plain = len(joined(until(connection), "response.output_audio.delta"))
    output = {"format": {"type": "audio/pcm", "rate": 48000}, "speed": 0.5}
    change: Any = {"type": "realtime", "audio": {"output": output}}
    connection.session.update(session=change)
    assert connection.recv().type == "session.updated"
    connection.response.create(response={"conversation": "none"})
    slow = len(joined(until(connection), "response.output_audio.delta"))
    assert slow == pytest.approx(4 * plain, rel=0.1)
