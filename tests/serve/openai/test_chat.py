"""Chat completions through the official SDK."""

from __future__ import annotations

import base64
import json

import httpx
import numpy as np
import openai
import pytest

from omni_python.client import OmniClient
from omni_python.serve.openai.encoding import encoded
from omni_python.serve.triton_server import TritonServer
from tests.serve.openai.test_encoding import decoded, tone

MODEL = "qwen3_omni"
LENGTHS = {"max_completion_tokens": 12, "extra_body": {"talker": {"max_tokens": 20, "temperature": 0}}}
QUESTION = [{"role": "user", "content": "What is the weather like today?"}]


@pytest.fixture(scope="module")
def direct(server: TritonServer) -> object:
    """The same questions asked of the pipeline itself."""
    with OmniClient(server.grpc_url, MODEL) as client:
        yield client


def expected(direct: OmniClient, messages: object = QUESTION):  # type: ignore[no-untyped-def]
    return direct.chat(messages=messages, sampling={"max_tokens": 12, "talker": {"max_tokens": 20, "temperature": 0}})  # type: ignore[arg-type]


def test_text(sdk: openai.OpenAI, direct: OmniClient) -> None:
    completion = sdk.chat.completions.create(model=MODEL, messages=QUESTION, max_completion_tokens=12)  # type: ignore[arg-type]
    answer = expected(direct)
    [choice] = completion.choices
    assert choice.message.content == answer.text and choice.message.audio is None
    assert choice.finish_reason == answer.finished.finish_reason
    assert completion.usage is not None
    assert completion.usage.prompt_tokens == answer.finished.usage["input_tokens"] > 0
    assert completion.usage.completion_tokens == answer.finished.usage["output_tokens"] > 0


@pytest.mark.parametrize("name", ["wav", "flac", "pcm16", "mp3", "opus", "aac"])
def test_text_and_speech_in_one_choice(sdk: openai.OpenAI, direct: OmniClient, name: str) -> None:
    completion = sdk.chat.completions.create(
        model=MODEL,
        messages=QUESTION,
        modalities=["text", "audio"],
        audio={"voice": "chelsie", "format": name},
        **LENGTHS,  # type: ignore
    )
    answer = direct.chat(
        messages=QUESTION, voice="chelsie", sampling={"max_tokens": 12, "talker": {"max_tokens": 20, "temperature": 0}}
    )
    [choice] = completion.choices
    audio = choice.message.audio
    assert audio is not None and audio.transcript == choice.message.content == answer.text
    samples, rate = decoded(name, base64.b64decode(audio.data), 24000)
    if name in ("wav", "flac", "pcm16"):
        assert rate == answer.sample_rate
        np.testing.assert_allclose(samples, np.clip(answer.audio, -1, 1), atol=1.1 / 32767)
    assert len(samples) / rate == pytest.approx(answer.audio_seconds, abs=0.15)


def test_a_stream_carries_the_same(sdk: openai.OpenAI, direct: OmniClient) -> None:
    answer = expected(direct)
    text, audio, ids, reasons, usages, roles = "", b"", set(), [], [], []
    for chunk in sdk.chat.completions.create(
        model=MODEL,
        messages=QUESTION,
        modalities=["text", "audio"],
        audio={"voice": "ethan", "format": "pcm16"},
        stream=True,
        stream_options={"include_usage": True},
        **LENGTHS,  # type: ignore
    ):
        if chunk.usage is not None:
            usages.append(chunk.usage)
        for choice in chunk.choices:
            text += choice.delta.content or ""
            roles += [choice.delta.role] if choice.delta.role else []
            reasons += [choice.finish_reason] if choice.finish_reason else []
            spoken = getattr(choice.delta, "audio", None) or {}
            ids |= {spoken["id"]} if "id" in spoken else set()
            audio += base64.b64decode(spoken.get("data", ""))
    assert (text, roles, reasons) == (answer.text, ["assistant"], [answer.finished.finish_reason])
    assert len(ids) == 1 and [usage.prompt_tokens for usage in usages] == [answer.finished.usage["input_tokens"]]
    assert usages[0].completion_tokens_details.audio_tokens == answer.finished.usage["audio_frames"] > 0
    np.testing.assert_allclose(np.frombuffer(audio, "<i2") / 32767, np.clip(answer.audio, -1, 1), atol=2.1 / 32767)


@pytest.mark.parametrize("stream", [False, True])
def test_usage_counts_frames_of_speech_and_timings_tell_of_every_stage(http: httpx.Client, stream: bool) -> None:
    body = {"model": MODEL, "messages": QUESTION, "modalities": ["text", "audio"], "max_completion_tokens": 12}
    body |= {"talker": {"max_tokens": 20, "temperature": 0}, "stream": stream, "audio": {"format": "pcm16"}}
    body |= {"stream_options": {"include_usage": True}} if stream else {}
    reply = http.post("/v1/chat/completions", json=body)
    if stream:
        events = [json.loads(line[6:]) for line in reply.text.splitlines() if line.startswith("data: {")]
        data = b"".join(
            base64.b64decode(c["delta"].get("audio", {}).get("data", "")) for e in events for c in e["choices"]
        )
        [timings] = [event["omni_timings"] for event in events if "omni_timings" in event]
        usage = events[-1]["usage"]
    else:
        data = base64.b64decode(reply.json()["choices"][0]["message"]["audio"]["data"])
        timings, usage = reply.json()["omni_timings"], reply.json()["usage"]

    details = usage["completion_tokens_details"]
    # The tiny vocoder makes 1920 samples of each frame, and of the last a part.
    assert details["audio_tokens"] == -(-len(data) // 2 // 1920) <= 20
    assert details["text_tokens"] == 12 and usage["completion_tokens"] == 12 + details["audio_tokens"]
    assert usage["total_tokens"] == usage["completion_tokens"] + usage["prompt_tokens"]

    times = {timing["stage"]: timing for timing in timings}
    assert list(times) == sorted(times, key=lambda stage: times[stage]["start"])
    assert set(times) == {"preprocessing", "mm_aggregate", "thinker", "decode", "talker_ar", "code2wav"}
    for time in times.values():
        assert 0 <= time["start"] <= time["first"] <= time["end"] < 60
    for earlier, later in [("preprocessing", "mm_aggregate"), ("mm_aggregate", "thinker"), ("talker_ar", "code2wav")]:
        assert times[earlier]["start"] < times[later]["start"]
    assert times["thinker"]["first"] < times["thinker"]["end"] <= times["code2wav"]["end"]


def test_audio_in(sdk: openai.OpenAI, direct: OmniClient) -> None:
    data = base64.b64encode(encoded("wav", tone(0.5, 16000), 16000)).decode()
    part = {"type": "input_audio", "input_audio": {"data": data, "format": "wav"}}
    messages = [{"role": "user", "content": [part, {"type": "text", "text": "What was that?"}]}]
    completion = sdk.chat.completions.create(model=MODEL, messages=messages, max_completion_tokens=12)  # type: ignore
    assert completion.choices[0].message.content == expected(direct, messages).text
    assert completion.usage is not None and completion.usage.prompt_tokens > 20


def test_a_conversation_goes_on_from_an_audio_id(sdk: openai.OpenAI, direct: OmniClient) -> None:
    first = (
        sdk.chat.completions.create(
            model=MODEL,
            messages=QUESTION,
            modalities=["text", "audio"],
            audio={"voice": "ethan", "format": "wav"},
            **LENGTHS,  # type: ignore
        )
        .choices[0]
        .message
    )
    assert first.audio is not None
    next_turn = {"role": "user", "content": "And tomorrow?"}
    by_id = [*QUESTION, {"role": "assistant", "audio": {"id": first.audio.id}}, next_turn]
    by_text = [*QUESTION, {"role": "assistant", "content": first.content}, next_turn]
    completion = sdk.chat.completions.create(model=MODEL, messages=by_id, max_completion_tokens=12)  # type: ignore
    assert completion.choices[0].message.content == expected(direct, by_text).text
    with pytest.raises(openai.NotFoundError, match="audio_no.*not known"):
        unknown = [*QUESTION, {"role": "assistant", "audio": {"id": "audio_no"}}, next_turn]
        sdk.chat.completions.create(model=MODEL, messages=unknown)  # type: ignore


BAD = [
    ({"logprobs": True}, "logprobs", "not supported"),
    ({"tools": []}, "tools", "not supported"),
    ({"n": 2}, "n", "Input should be 1"),
    ({"temperature": 9}, "temperature", "less than or equal to 2"),
    ({"messages": []}, "messages", "at least 1"),
    ({"messages": [{"role": "tool", "content": "x"}]}, "messages.0", "whose role is system, developer,"),
    ({"messages": [{"role": "user", "content": [{"type": "poem"}]}]}, "messages.0.content.0", "whose type is text,"),
    ({"messages": [{"role": "user", "content": ""}]}, None, "empty"),
    ({"modalities": ["smell"]}, "modalities.0", "'text' or 'audio'"),
    ({"modalities": ["text", "audio"], "audio": {"voice": "nobody"}}, "voice", "unknown voice 'nobody'; valid: aiden"),
    ({"audio": {"voice": "ethan"}}, None, "modalities"),
    ({"stream_options": {}}, None, "stream true"),
    ({"model": None}, "model", "valid string"),
    (
        {
            "messages": [
                {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}]}
            ]
        },
        "messages.0.content.0",
        "image",
    ),
]


@pytest.mark.parametrize(("change", "param", "message"), BAD)
@pytest.mark.parametrize("stream", [False, True])
def test_bad_requests(http: httpx.Client, change: dict, param: str | None, message: str, stream: bool) -> None:
    body = {"model": MODEL, "messages": QUESTION, "stream": stream, **change}
    if stream and "stream_options" in change:
        body["stream"] = False
    reply = http.post("/v1/chat/completions", json=body)
    error = reply.json()["error"]
    assert reply.status_code == 400 and error["type"] == "invalid_request_error"
    assert message in error["message"]
    if param is not None:
        assert error["param"] == param


def test_other_refusals(http: httpx.Client, sdk: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError, match="does not exist.*; there are: qwen3_omni, qwen3_omni_text"):
        sdk.chat.completions.create(model="gpt-5", messages=QUESTION)  # type: ignore
    with pytest.raises(openai.BadRequestError, match="cannot speak"):
        sdk.chat.completions.create(
            model="qwen3_omni_text",
            messages=QUESTION,
            modalities=["text", "audio"],
            audio={"voice": "ethan", "format": "wav"},  # type: ignore
        )
    reply = http.post("/v1/chat/completions", content=b'{"model": ', headers={"content-type": "application/json"})
    assert reply.status_code == 400 and "not valid JSON" in reply.json()["error"]["message"]
    assert http.get("/v1/nothing").status_code == 404
    assert http.get("/v1/chat/completions").status_code == 405


def test_leaving_a_stream_aborts_the_request(http: httpx.Client, server: TritonServer) -> None:
    from tests.e2e import metrics

    metrics.wait_empty(server, MODEL)
    before = metrics.aborted(server, MODEL)
    body = {"model": MODEL, "messages": QUESTION, "stream": True, "max_completion_tokens": 4000, "ignore_eos": True}
    with http.stream("POST", "/v1/chat/completions", json=body) as reply:
        first = next(reply.iter_lines())
        assert json.loads(first.removeprefix("data: "))["choices"][0]["delta"]["role"] == "assistant"
    metrics.wait_left(server, MODEL, before + 1)
