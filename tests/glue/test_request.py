"""Reading a request's tensors, without Triton."""

from __future__ import annotations

import base64
import json
from typing import Any

import numpy as np
import pytest

from omni_python.glue.request import parse_request
from omni_python.proto.errors import InvalidArgument
from omni_python.proto.request import AudioPart, ImagePart, TextPart, VideoPart


def text(value: str) -> np.ndarray:
    return np.array([value.encode()], np.object_)


def test_a_plain_prompt_and_its_defaults() -> None:
    parsed = parse_request({"text_input": text("hi")})
    request = parsed.request
    assert [(m.role, m.content) for m in request.messages] == [("user", [TextPart("hi")])]
    assert (request.modalities, request.voice or None, request.sampling) == (None, None, {})
    assert (request.stream, request.echo, parsed.audio_format) == (False, False, "fp32")


def test_media_come_before_the_text_in_a_fixed_order() -> None:
    parsed = parse_request(
        {
            "text_input": text("what?"),
            "videos": np.array([b"v"], np.object_),
            "images": np.array([b"i1", b"i2"], np.object_),
            "audios": np.array([b"a"], np.object_),
            "audio": np.array([0.5, -0.5], np.float32),
            "audio_sample_rate": np.array([8000], np.int32),
        }
    )
    kinds = [type(part) for part in parsed.request.messages[0].content]
    assert kinds == [AudioPart, AudioPart, ImagePart, ImagePart, VideoPart, TextPart]
    pcm, file, first, second, *_ = parsed.request.messages[0].content
    assert isinstance(pcm, AudioPart) and pcm.sample_rate == 8000 and pcm.samples is not None
    assert isinstance(file, AudioPart) and file.data is not None and file.data.tobytes() == b"a"
    assert isinstance(first, ImagePart) and isinstance(second, ImagePart)
    assert (first.data.tobytes(), second.data.tobytes()) == (b"i1", b"i2")


def test_chat_messages_with_every_kind_of_part() -> None:
    data = base64.b64encode(b"\x00\xffbytes").decode()
    chat = [
        {"role": "system", "content": "be brief"},
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "look"},
                {"type": "input_audio", "input_audio": {"data": data, "format": "wav"}},
                {"type": "audio_url", "audio_url": {"url": f"data:audio/wav;base64,{data}"}},
                {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{data}", "detail": "low"}},
                {"type": "video_url", "video_url": {"url": f"data:video/mp4;base64,{data}"}},
            ],
        },
    ]
    messages = parse_request({"messages": text(json.dumps(chat))}).request.messages
    assert messages[0].content == [TextPart("be brief")]
    files = [part.data for part in messages[1].content if not isinstance(part, TextPart)]
    assert len(files) == 4 and all(file is not None and file.tobytes() == b"\x00\xffbytes" for file in files)


def test_parameters_of_http_clients_count_as_sampling_parameters_and_lose_to_them() -> None:
    parsed = parse_request(
        {"text_input": text("hi"), "sampling_parameters": text('{"temperature": 0.5}')},
        {"temperature": 1, "top_k": 3, "stream": True, "voice": "ethan", "triton_enable_empty_final_response": True},
    )
    assert parsed.request.sampling == {"temperature": 0.5, "top_k": 3}
    assert parsed.request.stream and parsed.request.voice == "ethan"


@pytest.mark.parametrize(("name", "value"), [("stream", "yes"), ("voice", 3)])
def test_parameters_of_the_wrong_type_are_named(name: str, value: Any) -> None:
    with pytest.raises(InvalidArgument, match=f"{name}: must be a"):
        parse_request({"text_input": text("hi")}, {name: value})


def test_media_after_an_assistants_turn_are_refused() -> None:
    chat = json.dumps([{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}])
    with pytest.raises(InvalidArgument, match="belong to the last message, whose role must then be 'user'"):
        parse_request({"messages": text(chat), "images": np.array([b"i"], np.object_)})
