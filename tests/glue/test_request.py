"""Reading a request's tensors, without Triton."""

from __future__ import annotations

import base64
import json
from typing import Any

import numpy as np
import pytest

from omni_python.glue.request import parse_request
from omni_python.proto.codec import EncodedPayload
from omni_python.proto.errors import InvalidArgument
from omni_python.proto.json_size import MAX_JSON_VALUES
from omni_python.proto.request import MAX_PARTS, AudioPart, ImagePart, TextPart, VideoPart


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


EMPTY = b'{"type":"text","text":""}'


def chat_of(*parts: int) -> dict[str, np.ndarray]:
    """Messages of so many empty parts."""
    messages = [b'{"role":"user","content":[%s]}' % b",".join([EMPTY] * count) for count in parts]
    return {"messages": np.array([b"[%s]" % b",".join(messages)], np.object_)}


@pytest.mark.parametrize(
    "tensors",
    [
        chat_of(20_000),
        chat_of(MAX_PARTS + 1),
        chat_of(*([1] * (MAX_PARTS + 1))),
        chat_of(*([0] * (MAX_PARTS + 1))),
        {**chat_of(MAX_PARTS - 1), "images": np.array([b"i", b"j"], np.object_)},
        {"audios": np.array([b"a"] * (MAX_PARTS + 1), np.object_)},
    ],
    ids=["20000", "one message", "messages", "empty messages", "with images", "audios"],
)
def test_too_many_parts_are_refused(tensors: dict[str, np.ndarray]) -> None:
    with pytest.raises(InvalidArgument, match=f"messages: [0-9]+ parts; at most {MAX_PARTS} are accepted"):
        parse_request(tensors)


def test_as_many_parts_as_may_be() -> None:
    [message, _] = parse_request(chat_of(MAX_PARTS - 1, 1)).request.messages
    assert len(message.content) == MAX_PARTS - 1


def test_what_would_become_too_many_objects_is_refused_unread() -> None:
    """Also where it is not what was to be read."""
    for tensors in (
        chat_of(500_000),
        {"messages": np.array([b"[" + b"0," * MAX_JSON_VALUES + b"0]"], np.object_)},
        {"text_input": text("hi"), "sampling_parameters": text(json.dumps(dict.fromkeys(map(str, range(200_000)))))},
    ):
        with pytest.raises(InvalidArgument, match=f"more than {MAX_JSON_VALUES} JSON values"):
            parse_request(tensors)


INTEGER = "integers have 64 bits, from -9223372036854775808 to 9223372036854775807"


@pytest.mark.parametrize(
    ("sampling", "message"),
    [
        ('{"talker": {"seed": 18446744073709551616}}', f"sampling_parameters.talker.seed: {INTEGER}"),
        ('{"talker": {"seed": 9223372036854775808}}', f"sampling_parameters.talker.seed: {INTEGER}"),
        ('{"top_k": -9223372036854775809}', f"sampling_parameters.top_k: {INTEGER}"),
        ('{"stop": ["x", 1%s]}' % ("0" * 1000), f"sampling_parameters.stop.1: {INTEGER}"),
        ('{"timeout_ms": 1%s}' % ("0" * 399), f"sampling_parameters.timeout_ms: {INTEGER}"),
        ('{"timeout_ms": 1%s}' % ("0" * 9999), "sampling_parameters: Integer value out of range"),
        ('{"a": ' * 3000 + "1" + "}" * 3000, "sampling_parameters: the JSON is nested too deep"),
        ('{"a": ' * 17 + "1" + "}" * 17, "sampling_parameters: nested too deep; at most 16 levels"),
        ('{"stop": %s}' % ("[" * 400 + "]" * 400), "sampling_parameters: nested too deep; at most 16 levels"),
        ('{"stop": ["%s"]}' % ("x" * (25 << 20)), "sampling_parameters: 26214404 bytes of text; at most 25165824"),
        ("[1]", "sampling_parameters: .*; valid is a JSON object"),
    ],
    ids=range(11),
)
def test_sampling_parameters_that_no_stage_can_be_sent_are_refused(sampling: str, message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        parse_request({"text_input": text("hi"), "sampling_parameters": text(sampling)})


def test_loose_parameters_are_bounded_alike() -> None:
    for parameters in ({"seed": 2**64}, {"timeout_ms": 10**399}):
        with pytest.raises(InvalidArgument, match=INTEGER):
            parse_request({"text_input": text("hi")}, parameters)


def test_the_largest_numbers_and_texts_can_be_sent() -> None:
    sampling = {"talker": {"seed": 2**63 - 1}, "least": -(2**63), "stop": ["x" * (23 << 20)]}
    parsed = parse_request({"text_input": text("y" * (4 << 20)), "sampling_parameters": text(json.dumps(sampling))})
    assert parsed.request.sampling == sampling and EncodedPayload(parsed.request).body


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('[{"x": %s}]' % ("[" * 3000 + "]" * 3000), "messages: the JSON is nested too deep"),
        ('[{"type": "input_audio", "input_audio": {"data": "\u00e9"}}]', r"messages\[0\].content\[0\].*base64"),
        (
            json.dumps([{"type": "image_url", "image_url": {"url": "http://" + "x" * 8000}}] * 600),
            "bytes of text and URLs",
        ),
    ],
    ids=["deep", "base64", "URLs"],
)
def test_messages_that_cannot_be_read(content: str, message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        parse_request({"messages": text(f'[{{"role": "user", "content": {content}}}]')})
