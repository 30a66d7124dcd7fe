"""Whatever a client sends wrongly gets an error that says what is valid, and the server serves on."""

from __future__ import annotations

import json
import re
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from omni_python.client import OmniClient, RequestFailed
from omni_python.client._transport import Transport
from omni_python.proto.errors import LONGEST_MESSAGE
from omni_python.serve.triton_server import TritonServer
from tests.e2e import metrics
from tests.oracle.cases import MEDIA

JPEG = next(path for path in sorted(MEDIA.iterdir()) if path.suffix in (".jpg", ".jpeg", ".png")).read_bytes()
MP4 = next(path for path in sorted(MEDIA.iterdir()) if path.suffix == ".mp4").read_bytes()
WAV = next(path for path in sorted(MEDIA.iterdir()) if path.suffix == ".wav").read_bytes()


@pytest.fixture(autouse=True)
def serves_on(client: OmniClient) -> Iterator[None]:
    yield
    assert client.chat("Hello?", sampling={"max_tokens": 2}, modalities=["text"]).text is not None


@pytest.fixture(autouse=True, scope="module")
def nothing_is_held(server: TritonServer) -> Iterator[None]:
    yield
    metrics.wait_empty(server, "qwen3_omni")


@pytest.mark.parametrize(
    ("request_options", "message"),
    [
        ({"voice": "darth"}, r"unknown voice 'darth'; valid: aiden, chelsie, ethan"),
        ({"voice": "v" * 300}, r"voice: has 300 bytes; names have at most 256"),
        ({"modalities": ["v" * 300]}, r"modalities: has 300 bytes; names have at most 256"),
        ({"modalities": ["smell"]}, r"unknown modality 'smell'; valid: text, audio"),
        ({"sampling": {"temprature": 1}}, r"unknown key 'temprature'; valid keys: temperature, top_p"),
        ({"sampling": {"talker": {"stop": ["x"]}}}, r"speech has no stop strings"),
        ({"sampling": {"talker": {"nope": 1}}}, r"sampling_parameters.talker: unknown key 'nope'"),
        ({"sampling": {"temperature": -1}}, r"Expected `float` >= 0"),
        ({"sampling": {"temperature": "hot"}}, r"Expected `float`, got `str`"),
        ({"sampling": {"max_tokens": 0}}, r"Expected `int` >= 1"),
        ({"sampling": {"talker": 3}}, r"sampling_parameters.talker must be an object"),
        ({"text": ""}, r"the prompt is empty"),
        ({"text": "   "}, r"the prompt is empty"),
        ({"audios": [b"RIFFxxxxWAVEjunk"]}, r"audio"),
        ({"audios": [WAV[:30]]}, r"audio"),
        ({"audios": [JPEG]}, r"audio"),
        ({"images": [b"\xff\xd8\xffnothing"]}, r"image"),
        ({"images": [JPEG[: len(JPEG) // 3]]}, r"image"),
        ({"images": [b""]}, r"images: the file is empty"),
        ({"videos": [MP4[: len(MP4) // 3]]}, r"video"),
        ({"videos": [b"\0" * 1000]}, r"video"),
        ({"audio": np.zeros(100, np.float32)}, r"audio needs audio_sample_rate"),
        ({"audio": np.zeros(0, np.float32), "audio_sample_rate": 16000}, r"audio: must hold at least one sample"),
        ({"audio": np.full(9, np.nan, np.float32), "audio_sample_rate": 16000}, r"audio: .* all finite"),
        ({"audio": np.zeros(9, np.float32), "audio_sample_rate": 7}, r"7 is not between 1000 and 384000"),
        ({"audio_sample_rate": 16000}, r"audio_sample_rate is given without audio"),
        ({"messages": []}, r"messages: the list is empty"),
        ({"messages": [{"role": "user"}]}, r"missing required field `content`"),
        ({"messages": [{"role": "king", "content": "hi"}]}, r"'king' is not one of system, user, assistant"),
        ({"messages": [{"role": "user", "content": [{"type": "smell"}]}]}, r"messages: .*smell"),
        ({"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}, r"role user"),
        ({"messages": [{"role": "user", "content": "hi", "mood": 1}]}, r"unknown field `mood`"),
        ({"text": "word " * 80_000}, r"the prompt has \d+ tokens; the context holds 65536"),
    ],
    ids=str,
)
def test_grpc(client: OmniClient, request_options: dict[str, Any], message: str) -> None:
    options = {"text": None if "messages" in request_options else "Hello.", **request_options}
    for stream in (True, False):
        with pytest.raises(RequestFailed, match=message):
            if stream:
                list(client.stream(**options))
            else:
                client.chat(**options)


def _image(url: str) -> list[dict[str, Any]]:
    return [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": url}}]}]


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("http://127.0.0.1:1/x.png", r"'http' URLs are not loaded by this server; send the file inline"),
        ("file:///etc/passwd", r"'file' URLs are not loaded"),
        ("/etc/passwd", r"URLs are not loaded"),
        ("data:image/png;base64,@@@", r"not valid base64"),
        ("data:image/png,abc", r"must look like data:<type>;base64,<data>"),
        ("data:image/png;base64,", r"the file is empty"),
        ("data:image/png;base64,AAAA", r"image"),
    ],
)
def test_urls(client: OmniClient, url: str, message: str) -> None:
    with pytest.raises(RequestFailed, match=message):
        client.chat(messages=_image(url))


def test_a_prompt_of_100_megabytes(client: OmniClient) -> None:
    with pytest.raises(RequestFailed, match="the prompt has 104857600 bytes of text and URLs; at most 4194304"):
        client.chat("x" * 104_857_600)


def test_an_error_quotes_no_more_than_can_be_read(client: OmniClient) -> None:
    """The request would hang until its deadline where its error is too long for a message."""
    with pytest.raises(RequestFailed) as raised:
        client.chat("hi", sampling={"\x01" * (20 << 20): 1})
    assert re.fullmatch(r"sampling_parameters: unknown key '.*\.\.\. \(of [0-9]{8} characters\)", str(raised.value))
    assert len(str(raised.value)) == LONGEST_MESSAGE


def test_text_and_messages_together(client: OmniClient) -> None:
    with pytest.raises(RequestFailed, match="either text_input or messages, not both"):
        client.chat("hi", messages=[{"role": "user", "content": "hi"}])


def test_audio_asked_of_a_pipeline_without_speech(text_client: OmniClient) -> None:
    with pytest.raises(RequestFailed, match=r'this pipeline cannot speak; ask for \["text"\]'):
        text_client.chat("hi", modalities=["audio"])


@pytest.mark.parametrize(
    ("name", "array", "message"),
    [
        ("text_input", np.array([[b"hi"]], np.object_), "text_input: shape must be|unexpected shape"),
        ("text_input", np.array([b"hi", b"ho"], np.object_), "text_input: shape must be|unexpected shape"),
        ("audio", np.zeros((2, 5), np.float32), "audio: shape must be|unexpected shape"),
        ("text_input", np.array([1], np.int32), "data-type"),
        ("no_such_input", np.array([1], np.int32), "unexpected inference input"),
        ("text_input", np.array([b"\xff\xfe"], np.object_), "text_input: must be UTF-8 text"),
        ("sampling_parameters", np.array([b"{"], np.object_), "sampling_parameters: .*; valid is a JSON object"),
        ("sampling_parameters", np.array([b"[1]"], np.object_), "sampling_parameters: .*; valid is a JSON object"),
        ("messages", np.array([b"nope"], np.object_), "messages: .* valid is a JSON list"),
        ("audio_format", np.array([b"ogg"], np.object_), "audio_format: 'ogg' is not one of fp32, pcm16, wav"),
    ],
    ids=str,
)
def test_tensors(server: TritonServer, name: str, array: np.ndarray, message: str) -> None:
    transport = Transport(server.grpc_url)
    inputs = {"text_input": np.array([b"hi"], np.object_), name: array}
    if name == "messages":
        del inputs["text_input"]
    with pytest.raises(RequestFailed, match=message):
        list(transport.infer("qwen3_omni", inputs))
    transport.close()


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"text_input": "hi", "temprature": 1}, "unknown key 'temprature'"),
        ({"text_input": ""}, "the prompt is empty"),
        ({}, "the prompt is empty"),
        ({"text_input": "hi", "voice": "darth"}, "unknown voice 'darth'"),
        ({"text_input": "hi", "audio_format": "ogg"}, "'ogg' is not one of"),
    ],
)
@pytest.mark.parametrize("method", ["generate", "generate_stream"])
def test_http(server: TritonServer, method: str, body: dict[str, Any], message: str) -> None:
    url = f"http://{server.http_url}/v2/models/qwen3_omni/{method}"
    request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
    with pytest.raises(urllib.error.HTTPError) as failed:
        urllib.request.urlopen(request, timeout=30)
    assert failed.value.code in (400, 500)
    assert message in failed.value.read().decode()
