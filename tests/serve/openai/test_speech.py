"""Speech, models, health and metrics through the official SDK and plain HTTP."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import openai
import pytest

from omni_python.client import OmniClient, PipelineInfo
from omni_python.serve.triton_server import TritonServer
from tests.serve.openai.test_encoding import decoded

MODEL = "qwen3_omni"


@pytest.mark.parametrize("name", ["wav", "mp3", "flac", "opus", "aac", "pcm"])
def test_speech_in_every_format(sdk: openai.OpenAI, name: Any) -> None:
    with sdk.audio.speech.with_streaming_response.create(
        model=MODEL,
        input="Hello there.",
        voice="ethan",
        response_format=name,
        extra_body={"seed": 7},
    ) as response:
        data = b"".join(response.iter_bytes())
        assert response.headers["content-type"].startswith("audio/")
    samples, rate = decoded(name, data, 24000)
    assert rate == (48000 if name == "opus" else 24000)
    assert len(samples) > 0.3 * rate and np.abs(samples).max() > 0.001


def test_speed(sdk: openai.OpenAI) -> None:
    def seconds(speed: float) -> float:
        reply = sdk.audio.speech.create(
            model=MODEL, input="Hello there.", voice="ethan", response_format="pcm", speed=speed, extra_body={"seed": 7}
        )
        return len(reply.content) / 2 / 24000

    assert seconds(2.0) == pytest.approx(seconds(1.0) / 2, abs=0.08)


def test_speech_refusals(sdk: openai.OpenAI, http: httpx.Client) -> None:
    with pytest.raises(openai.BadRequestError, match="unknown voice 'nobody'; valid: aiden, chelsie"):
        sdk.audio.speech.create(model=MODEL, input="Hello.", voice="nobody")
    with pytest.raises(openai.BadRequestError, match="at least 1 character"):
        sdk.audio.speech.create(model=MODEL, input="", voice="ethan")
    reply = http.post("/v1/audio/speech", json={"model": MODEL, "input": "x", "response_format": "midi"})
    assert reply.status_code == 400 and reply.json()["error"]["param"] == "response_format"


def test_voices(http: httpx.Client) -> None:
    reply = http.get("/v1/audio/voices").json()["voices"]
    assert [voice["id"] for voice in reply] == ["aiden", "chelsie", "ethan"]
    assert [voice["name"] for voice in reply if voice["default"]] == ["Ethan"]
    assert {voice["model"] for voice in reply} == {MODEL}
    assert http.get("/v1/audio/voices", params={"model": MODEL}).json()["voices"] == reply
    assert http.get("/v1/audio/voices", params={"model": "qwen3_omni_text"}).json() == {"voices": []}
    missing = http.get("/v1/audio/voices", params={"model": "gpt-5"})
    assert missing.status_code == 404 and "qwen3_omni, qwen3_omni_text" in missing.json()["error"]["message"]


def test_the_pipelines_describe_themselves(server: TritonServer, checkpoint: Path) -> None:
    config = json.loads((checkpoint / "config.json").read_text())
    context = config["thinker_config"]["text_config"]["max_position_embeddings"]
    with OmniClient(server.grpc_url, MODEL) as client:
        assert client.info() == PipelineInfo(("text", "audio"), ("aiden", "chelsie", "ethan"), "ethan", 24000, context)
    with OmniClient(server.grpc_url, "qwen3_omni_text") as client:
        assert client.info() == PipelineInfo(("text",), context=context)


def test_models_health_and_metrics(sdk: openai.OpenAI, http: httpx.Client) -> None:
    assert [model.id for model in sdk.models.list()] == ["qwen3_omni", "qwen3_omni_text"]
    assert sdk.models.retrieve("qwen3_omni").id == "qwen3_omni"
    with pytest.raises(openai.NotFoundError, match="there are: qwen3_omni, qwen3_omni_text"):
        sdk.models.retrieve("gpt-5")
    assert http.get("/health").json() == {"status": "ready", "pipelines": ["qwen3_omni", "qwen3_omni_text"]}
    assert (http.head("/health").status_code, http.head("/health").content) == (200, b"")
    assert 'omni_requests_total{pipeline="qwen3_omni"' in http.get("/metrics").text
