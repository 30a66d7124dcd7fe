"""A request's conversation: chat messages in OpenAI's form, and media beside them."""

from __future__ import annotations

import base64
from typing import Any

import msgspec
import numpy as np

from omni_python.glue.inputs import Inputs
from omni_python.proto.errors import InvalidArgument, Unsupported
from omni_python.proto.request import (
    MAX_PARTS,
    ROLES,
    AudioPart,
    ContentPart,
    ImagePart,
    Message,
    TextPart,
    VideoPart,
)

MAX_TEXT_BYTES = 4 << 20
"""Of text and URLs in one request; far more than any context window, and refused before a tokenizer sees it."""

SCHEMES = ("http", "https", "file")
"""Of URLs that a pipeline's media policy may allow."""
MAX_URL = 8192
_ADDRESSES = tuple(f"{scheme}://".encode() for scheme in SCHEMES)

_FILES = ("audios", "images", "videos")
"""Inputs."""


class _Data(msgspec.Struct, forbid_unknown_fields=True):
    data: str
    format: str | None = None


class _Url(msgspec.Struct, forbid_unknown_fields=True):
    url: str
    detail: str | None = None


class _Text(msgspec.Struct, tag="text", forbid_unknown_fields=True):
    text: str


class _InputAudio(msgspec.Struct, tag="input_audio", forbid_unknown_fields=True):
    input_audio: _Data


class _AudioUrl(msgspec.Struct, tag="audio_url", forbid_unknown_fields=True):
    audio_url: _Url


class _ImageUrl(msgspec.Struct, tag="image_url", forbid_unknown_fields=True):
    image_url: _Url


class _VideoUrl(msgspec.Struct, tag="video_url", forbid_unknown_fields=True):
    video_url: _Url


class _ChatMessage(msgspec.Struct, forbid_unknown_fields=True):
    role: str
    content: str | list[_Text | _InputAudio | _AudioUrl | _ImageUrl | _VideoUrl]


_messages = msgspec.json.Decoder(list[_ChatMessage])
_VALID = (
    "a JSON list of {role, content}, where content is a string or a list of parts of type text, input_audio, "
    "audio_url, image_url or video_url"
)


def conversation(inputs: Inputs) -> list[Message]:
    """Raises `InvalidArgument` or `Unsupported`, naming the input."""
    text, chat = inputs.string("text_input"), inputs.json("messages", _messages, _VALID)
    if text and chat is not None:
        raise InvalidArgument("give either text_input or messages, not both")
    if chat is not None and not chat:
        raise InvalidArgument("messages: the list is empty")
    _check_count(sum(_count(message) for message in chat or ()) + sum(map(inputs.count, _FILES)))
    media = _media(inputs) if inputs.have_media else []
    if chat:
        messages = _chat(chat)
        if media:
            last = messages[-1]
            if last.role != "user":
                raise InvalidArgument(
                    "audio, images and videos belong to the last message, whose role must then be 'user'"
                )
            messages[-1] = Message("user", [*media, *last.content])
    elif text or media:
        messages = [Message("user", [*media, *([TextPart(text)] if text else [])])]
    else:
        raise InvalidArgument("the prompt is empty: give text_input, messages, audio, audios, images or videos")
    size = sum(_text_size(part) for message in messages for part in message.content)
    if size > MAX_TEXT_BYTES:
        raise InvalidArgument(f"the prompt has {size} bytes of text and URLs; at most {MAX_TEXT_BYTES} are accepted")
    return messages


def _count(message: _ChatMessage) -> int:
    """Of its parts; each message costs something, also one that has none."""
    return 1 if isinstance(message.content, str) else max(len(message.content), 1)


def _check_count(parts: int) -> None:
    if parts > MAX_PARTS:
        raise InvalidArgument(
            f"messages: {parts} parts; at most {MAX_PARTS} are accepted in all messages and media inputs together, "
            "where each message counts as one at least"
        )


def _text_size(part: ContentPart) -> int:
    """Bytes that lie in the message to the first stage, unlike files."""
    return len((part.text if isinstance(part, TextPart) else part.url or "").encode())


def _media(inputs: Inputs) -> list[ContentPart]:
    parts: list[ContentPart] = []
    samples = inputs.get("audio")
    rate = inputs.get("audio_sample_rate")
    if samples is not None:
        if rate is None:
            raise InvalidArgument("audio needs audio_sample_rate, its samples per second")
        if not 1000 <= int(rate[0]) <= 384_000:
            raise InvalidArgument(f"audio_sample_rate: {int(rate[0])} is not between 1000 and 384000")
        if not len(samples) or not np.isfinite(samples).all():
            raise InvalidArgument("audio: must hold at least one sample, all finite")
        parts.append(AudioPart(samples=samples, sample_rate=int(rate[0])))
    elif rate is not None:
        raise InvalidArgument("audio_sample_rate is given without audio")
    parts += [AudioPart(data=_file("audios", data)) for data in inputs.files("audios")]
    parts += [ImagePart(_file("images", data)) for data in inputs.files("images")]
    parts += [VideoPart(_file("videos", data)) for data in inputs.files("videos")]
    return parts


def _chat(chat: list[_ChatMessage]) -> list[Message]:
    messages = []
    for index, message in enumerate(chat):
        where = f"messages[{index}]"
        if message.role not in ROLES:
            raise InvalidArgument(f"{where}.role: {message.role!r} is not one of {', '.join(ROLES)}")
        parts = [_Text(message.content)] if isinstance(message.content, str) else message.content
        messages.append(Message(message.role, [_part(part, f"{where}.content[{n}]") for n, part in enumerate(parts)]))
    return messages


def _part(part: Any, where: str) -> ContentPart:
    match part:
        case _Text(text):
            return TextPart(text)
        case _InputAudio(audio):
            return AudioPart(data=_base64(audio.data, f"{where}.input_audio.data"))
        case _AudioUrl(url):
            data, address = _url(url.url, f"{where}.audio_url.url")
            return AudioPart(data=data, url=address)
        case _ImageUrl(url):
            data, address = _url(url.url, f"{where}.image_url.url")
            return ImagePart(data, address)
        case _VideoUrl(url):
            data, address = _url(url.url, f"{where}.video_url.url")
            return VideoPart(data=data, url=address)
    raise InvalidArgument(f"{where}: unknown part")


def _url(url: str, where: str) -> tuple[np.ndarray, str]:
    """A part's `data` and `url`. Whether the file may be got is for the stage that does it; here is the form alone."""
    if not url.startswith("data:"):
        scheme = url.partition(":")[0][:20]
        if scheme.lower() not in SCHEMES:
            raise Unsupported(
                f"{where}: {scheme!r} URLs are not loaded by any server; send the file inline as a data: URL"
            )
        if len(url) > MAX_URL:
            raise InvalidArgument(f"{where}: the URL has {len(url)} characters; at most {MAX_URL} are accepted")
        return np.empty(0, np.uint8), url
    head, comma, data = url.partition(",")
    if not comma or not head.endswith(";base64"):
        raise InvalidArgument(f"{where}: a data: URL must look like data:<type>;base64,<data>")
    return _base64(data, where), "data:"


def _base64(data: str, where: str) -> np.ndarray:
    try:
        return _file(where, base64.b64decode(data, validate=True))
    except ValueError as error:  # binascii's, or one of a text that is not ASCII
        raise InvalidArgument(f"{where}: not valid base64 ({error})") from None


def _file(where: str, data: bytes) -> np.ndarray:
    if not data:
        raise InvalidArgument(f"{where}: the file is empty")
    if data.startswith(_ADDRESSES) and len(data) <= MAX_URL:
        raise InvalidArgument(f"{where}: holds the content of files, not addresses; put a URL into messages")
    return np.frombuffer(data, np.uint8)
