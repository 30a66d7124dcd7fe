"""Requests that are wrong in every way that we thought of, each with what the answer must name."""

from __future__ import annotations

import base64
import copy
import io
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from PIL import Image

from omni_python.proto.wav import wav_file

MODEL = "qwen3_omni"
CHAT, SPEECH = "/v1/chat/completions", "/v1/audio/speech"
BODIES: dict[str, dict[str, Any]] = {
    CHAT: {"model": MODEL, "messages": [{"role": "user", "content": "Hello."}], "max_completion_tokens": 1},
    SPEECH: {"model": MODEL, "input": "Hello."},
}
JSON = {"content-type": "application/json"}


@dataclass(frozen=True)
class Case:
    """`names` must be in the message; `param` is the field at fault, None where there is none."""

    name: str
    path: str
    content: bytes
    names: str
    param: str | None = None
    status: int = 400
    headers: tuple[tuple[str, str], ...] = tuple(JSON.items())


def cases() -> list[Case]:
    found = [
        *_wrong_types(),
        *_parts(),
        *_conversations(),
        *_numbers(),
        *_unknown_fields(),
        *_media(),
        *_texts(),
        *_media_types(),
        *_values(),
    ]
    assert len({case.name for case in found}) == len(found)
    return found


def _changed(path: str, change: Callable[[Any], None]) -> bytes:
    body = copy.deepcopy(BODIES[path])
    change(body)
    return json.dumps(body).encode()


def _with(path: str, field: str, value: Any) -> bytes:
    return _changed(path, lambda body: body.update({field: value}))


def _message(*parts: Any) -> bytes:
    return _with(CHAT, "messages", [{"role": "user", "content": list(parts)}])


_VALUES: dict[str, Any] = {"text": "x", "int": 7, "float": 0.5, "bool": True, "list": [[]], "object": {"a": {}}}
_TYPES = {
    CHAT: {
        "model": "text",
        "messages": "",
        "modalities": "",
        "audio": "",
        "stream": "bool",
        "stream_options": "",
        "temperature": "int float",
        "top_p": "int float",
        "top_k": "int",
        "repetition_penalty": "int float",
        "seed": "int",
        "stop": "text",
        "max_completion_tokens": "int",
        "max_tokens": "int",
        "ignore_eos": "bool",
        "talker": "object",
        "n": "",
        "user": "text",
        "metadata": "",
    },
    SPEECH: {
        "model": "text",
        "input": "text",
        "voice": "text",
        "instructions": "text",
        "response_format": "",
        "speed": "int float",
        "stream_format": "",
        "seed": "int",
    },
}


def _wrong_types() -> Iterator[Case]:
    for path, fields in _TYPES.items():
        for field, valid in fields.items():
            for kind, value in _VALUES.items():
                if kind not in valid.split() and not (field == "n" and kind == "bool"):
                    inside = {
                        ("messages", "list"): "messages.0",
                        ("modalities", "list"): "modalities.0",
                        ("audio", "object"): "audio.a",
                        ("stream_options", "object"): "stream_options.a",
                        ("stop", "list"): "stop.0",
                        ("metadata", "object"): "metadata.a",
                    }
                    param = inside.get((field, kind), field)
                    yield Case(f"{field} as {kind} {path}", path, _with(path, field, value), param, param)
    for path, required in ((CHAT, ("model", "messages")), (SPEECH, ("model", "input"))):
        for field in required:
            yield Case(f"no {field} {path}", path, _changed(path, lambda b, f=field: b.pop(f)), field, field)  # type: ignore[misc]
            yield Case(f"null {field} {path}", path, _with(path, field, None), field, field)


def _parts() -> Iterator[Case]:
    where = "messages.0.content.0"
    for kind, inner in (("image_url", "url"), ("audio_url", "url"), ("video_url", "url"), ("input_audio", "data")):
        path = f"{where}.{kind}"
        yield Case(f"{kind} missing", CHAT, _message({"type": kind}), path, path)
        yield Case(f"{kind} a text", CHAT, _message({"type": kind, kind: "x"}), path, path)
        yield Case(f"{kind} empty", CHAT, _message({"type": kind, kind: {}}), path, f"{path}.{inner}")
        yield Case(f"{kind} a number", CHAT, _message({"type": kind, kind: {inner: 5}}), path, f"{path}.{inner}")
        more = {"type": kind, kind: {inner: "x", "colour": 1}}
        yield Case(f"{kind} with more", CHAT, _message(more), "colour", f"{path}.colour")
        beside = {"type": kind, kind: {inner: "x"}, "text": "x"}
        yield Case(f"{kind} with a text", CHAT, _message(beside), "supported are", f"{where}.text")
    yield Case("text part without text", CHAT, _message({"type": "text"}), "text", f"{where}.text")
    yield Case("text part of a number", CHAT, _message({"type": "text", "text": 1}), "text", f"{where}.text")
    yield Case("a part of no type", CHAT, _message({"text": "x"}), "type", where)
    yield Case("a part of an unknown type", CHAT, _message({"type": "file", "file": {}}), "video_url", where)
    yield Case("a part that is a text", CHAT, _message("Hello."), "object", where)
    yield Case("a part that is null", CHAT, _message(None), "object", where)
    twice = {"type": "text", "text": "x"}, {"type": "text"}
    empty = {"type": "text", "text": ""}
    yield Case("20,000 parts", CHAT, _message(*[empty] * 20_000), "at most 4096", "messages")
    yield Case("500,000 parts", CHAT, _message(*[empty] * 500_000), "more than 100000 values", status=413)
    yield Case("a second part without text", CHAT, _message(*twice), "text", "messages.0.content.1.text")
    detail = {"type": "image_url", "image_url": {"url": "x", "detail": "high"}}
    yield Case("detail high", CHAT, _message(detail), "'auto'", f"{where}.image_url.detail")


def _conversations() -> Iterator[Case]:
    def chat(*messages: Any) -> bytes:
        return _with(CHAT, "messages", list(messages))

    user = {"role": "user", "content": "Hello."}
    picture = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    yield Case("no messages", CHAT, chat(), "messages", "messages")
    yield Case("a message that is a text", CHAT, chat("Hello."), "role", "messages.0")
    yield Case("a message without a role", CHAT, chat({"content": "x"}), "role", "messages.0")
    yield Case("a message of an unknown role", CHAT, chat({"role": "tool", "content": "x"}), "assistant", "messages.0")
    for role in ("user", "system", "developer"):
        where = "messages.0.content"
        yield Case(f"{role} without content", CHAT, chat({"role": role}, user), where, where)
        yield Case(f"{role} with null", CHAT, chat({"role": role, "content": None}, user), "list of parts", where)
        tool: dict[str, Any] = {"role": role, "content": "x", "tool_calls": []}
        yield Case(f"{role} with tools", CHAT, chat(tool, user), "tool_calls", "messages.0.tool_calls")
    for role in ("system", "assistant"):
        content = {"role": role, "content": [picture]}
        yield Case(f"{role} with a picture", CHAT, chat(content, user), "messages.0", "messages.0.content.0.image_url")
    yield Case("an assistant that says nothing", CHAT, chat({"role": "assistant"}, user), "content", "messages.0")
    speech = {"role": "assistant", "audio": {"id": "audio_0"}}
    yield Case("an unknown audio", CHAT, chat(user, speech, user), "audio_0", "messages.1.audio.id", 404)
    number = {"role": "assistant", "audio": {"id": 1}}
    yield Case("an audio's id a number", CHAT, chat(user, number, user), "string", "messages.1.audio.id")
    yield Case("an answer last", CHAT, chat(user, {"role": "assistant", "content": "x"}), "user")
    yield Case("only a system message", CHAT, chat({"role": "system", "content": "x"}), "user")
    yield Case("nothing asked", CHAT, chat({"role": "user", "content": " "}), "empty")


def _numbers() -> Iterator[Case]:
    for field, values in {
        "temperature": (-0.1, 2.1, 1e300),
        "top_p": (0, 1.5, -1),
        "top_k": (-1, 2**31, 10**300),
        "repetition_penalty": (0, 11),
        "seed": (-1, 2**63, 10**1000),
        "max_completion_tokens": (0, -5, 2**31, 10**100),
        "max_tokens": (0,),
        "n": (0, 2, 10**30),
    }.items():
        for value in values:
            yield Case(f"{field} {value:.4g}" if abs(value) < 1e200 else f"{field} {len(str(value))}", CHAT,
                       _with(CHAT, field, value), field, field)  # fmt: skip
    for value in (0.2, 4.1, -1, 0):
        yield Case(f"speed {value}", SPEECH, _with(SPEECH, "speed", value), "speed", "speed")
    for text in ("NaN", "Infinity", "-Infinity"):
        content = _with(CHAT, "temperature", "@").replace(b'"@"', text.encode())
        yield Case(f"temperature {text}", CHAT, content, "JSON")
    too_large = _with(CHAT, "temperature", "@").replace(b'"@"', b"1e999")
    yield Case("temperature 1e999", CHAT, too_large, "finite", "temperature")
    digits = _with(CHAT, "seed", "@").replace(b'"@"', b"1" * 10_000)
    yield Case("10,000 digits", CHAT, digits, "out of range")


def _unknown_fields() -> Iterator[Case]:
    for field in ("logprobs", "tools", "tool_choice", "response_format", "logit_bias", "presence_penalty", "store"):
        yield Case(f"chat {field}", CHAT, _with(CHAT, field, None), "supported are temperature", field)
    for field in ("language", "Voice", "", "input.text", "\u00fc", "<b>", "__proto__", "x" * 5000):
        yield Case(f"speech {field[:20]}", SPEECH, _with(SPEECH, field, 1), "supported are model, input", None)


def _media() -> Iterator[Case]:
    wav = wav_file(np.zeros(4000, np.float32), 16000)
    png, gif = io.BytesIO(), io.BytesIO()
    Image.new("RGB", (64, 48), "red").save(png, "PNG")
    Image.new("RGB", (64, 48), "red").save(gif, "GIF")
    pictures = {"png": png.getvalue(), "gif": gif.getvalue()}

    def url(kind: str, data: bytes, media_type: str) -> dict[str, Any]:
        address = f"data:{media_type};base64,{base64.b64encode(data).decode()}"
        return {"type": kind, kind: {"url": address}}

    def audio(data: bytes | str) -> dict[str, Any]:
        text = data if isinstance(data, str) else base64.b64encode(data).decode()
        return {"type": "input_audio", "input_audio": {"data": text, "format": "wav"}}

    wrong: dict[str, dict[str, Any]] = {
        "half a png": url("image_url", pictures["png"][:60], "image/png"),
        "a png's start": url("image_url", pictures["png"][:8], "image/png"),
        "half a gif": url("image_url", pictures["gif"][:20], "image/gif"),
        "a text as a picture": url("image_url", b"This is no picture.", "image/png"),
        "a sound as a picture": url("image_url", wav, "image/png"),
        "a picture as a sound": url("audio_url", pictures["png"], "audio/wav"),
        "a picture as input_audio": audio(pictures["png"]),
        "a wav's header's half": audio(wav[:20]),
        "a wav of no samples": audio(wav[:44]),
        "zeros as a sound": audio(bytes(1000)),
        "a text as a video": url("video_url", b"This is no video." * 9, "video/mp4"),
        "a sound as a video": url("video_url", wav, "video/mp4"),
        "nothing as a picture": url("image_url", b"", "image/png"),
        "nothing as a sound": audio(""),
        "bad base64": audio("@@@@"),
        "base64 cut short": audio("AAAAA"),
        "base64 of another alphabet": audio("-_-_"),
        "a data: URL without base64": {"type": "image_url", "image_url": {"url": "data:image/png,AAAA"}},
        "a data: URL without data": {"type": "image_url", "image_url": {"url": "data:image/png;base64"}},
        "an empty URL": {"type": "image_url", "image_url": {"url": ""}},
        "an ftp URL": {"type": "image_url", "image_url": {"url": "ftp://example.com/a.png"}},
        "an http URL": {"type": "image_url", "image_url": {"url": "http://example.com/a.png"}},
        "a file URL": {"type": "video_url", "video_url": {"url": "file:///etc/passwd"}},
        "a path as a URL": {"type": "audio_url", "audio_url": {"url": "/etc/passwd"}},
        "an address as a file": audio(b"http://example.com/a.wav"),
        "a long URL": {"type": "image_url", "image_url": {"url": "http://example.com/" + "a" * 9000}},
    }
    for name, part in wrong.items():
        yield Case(name, CHAT, _message(part, {"type": "text", "text": "?"}), "messages[0].content[0]")


def _texts() -> Iterator[Case]:
    good = json.dumps(BODIES[CHAT]).encode()
    for name, content in {
        "empty": b"",
        "blank": b" \n",
        "no JSON": b"Hello.",
        "cut short": good[:-3],
        "a word missing": good.replace(b":", b"", 1),
        "something after the end": good + b"{}",
        "a comma too many": good[:-1] + b",}",
        "single quotes": good.replace(b'"', b"'"),
        "a comment": b"/* */" + good,
        "a byte-order mark": b"\xef\xbb\xbf" + good,
        "UTF-16": good.decode().encode("utf-16"),
        "invalid UTF-8": good.replace(b"Hello", b"\xff\xfe"),
        "Latin-1": good.replace(b"Hello", b"\xe9t\xe9"),
        "half a surrogate pair": good.replace(b"Hello", b"\\ud800"),
        "a bad escape": good.replace(b"Hello", b"\\x41"),
        "a control character": good.replace(b"Hello", b"\x01"),
        "a NUL": b"\0",
        "deep lists": b"[" * 100_000,
        "deep objects": b'{"a":' * 100_000,
        "deep talker": _with(CHAT, "talker", "@").replace(b'"@"', b'{"a":' * 300 + b"1" + b"}" * 300),
        "a key twice": good.replace(b"{", b'{"model": "x", ', 1),
        "a part's key twice": _message({"type": "text", "text": "x"}).replace(b'"text": ', b'"text": "y", "text": ', 1),
    }.items():
        yield Case(name, CHAT, content, "not valid JSON")
    for name, content in {"a list": b"[]", "a text": b'"x"', "null": b"null", "a number": b"1"}.items():
        yield Case(f"body {name}", SPEECH, content, "must be a JSON object")


def _media_types() -> Iterator[Case]:
    good = json.dumps(BODIES[SPEECH]).encode()
    boundary = b'--b\r\nContent-Disposition: form-data; name="model"\r\n\r\nx\r\n'
    for media_type, content in {
        "": good,
        "text/plain": good,
        "text/json": good,
        "application/octet-stream": good,
        "application/x-www-form-urlencoded": b"model=x&input=y",
        "multipart/form-data; boundary=b": boundary * 2 + b"--b--",
        "audio/wav": wav_file(np.zeros(10, np.float32), 8000),
        "nonsense": good,
    }.items():
        headers = (("content-type", media_type),) if media_type else ()
        yield Case(f"as {media_type}", SPEECH, content, "application/json", status=415, headers=headers)


def _values() -> Iterator[Case]:
    audio = {"modalities": ["text", "audio"]}

    def chat(**fields: Any) -> bytes:
        return _changed(CHAT, lambda body: body.update(fields))

    yield Case("an unknown model", CHAT, chat(model="gpt-5"), "qwen3_omni", "model", 404)
    yield Case("an empty model", CHAT, chat(model=""), "model", "model")
    yield Case("a long model", CHAT, chat(model="x" * 300), "256", "model")
    yield Case("a stage as the model", CHAT, chat(model="qwen3_omni_front"), "qwen3_omni", "model", 404)
    yield Case("an unknown model for speech", SPEECH, _with(SPEECH, "model", "../x"), "qwen3_omni", "model", 404)
    yield Case("an unknown voice", CHAT, chat(**audio, audio={"voice": "nobody"}), "aiden, chelsie, ethan", "voice")
    yield Case("an unknown voice for speech", SPEECH, _with(SPEECH, "voice", "alloy"), "chelsie", "voice")
    yield Case("an unknown format", CHAT, chat(**audio, audio={"format": "midi"}), "'flac'", "audio.format")
    yield Case("pcm for chat", CHAT, chat(**audio, audio={"format": "pcm"}), "'pcm16'", "audio.format")
    yield Case("an unknown format for speech", SPEECH, _with(SPEECH, "response_format", "MP3"), "'mp3'",
               "response_format")  # fmt: skip
    yield Case("no text to speak", SPEECH, _with(SPEECH, "input", ""), "at least 1", "input")
    yield Case("unknown modality", CHAT, chat(modalities=["smell"]), "'audio'", "modalities.0")
    yield Case("audio not asked for", CHAT, chat(audio={"voice": "ethan"}), "modalities")
    yield Case("speech of a model without", CHAT, chat(model="qwen3_omni_text", **audio), "cannot speak", "modalities")
    yield Case("two lengths", CHAT, chat(max_tokens=3), "max_completion_tokens")
    yield Case("stream options alone", CHAT, chat(stream_options={}), "stream true")
    yield Case("too many stop strings", CHAT, chat(stop=["x"] * 17), "at most 16", "stop")
    yield Case("a long stop string", CHAT, chat(stop=["x", "x" * 257]), "at most 256", "stop.1")
    yield Case("an empty stop string", CHAT, chat(stop=[""]), "at least 1", "stop.0")
    yield Case("talker of an unknown key", CHAT, chat(talker={"warmth": 1}), "valid keys", "talker")
    yield Case("talker of a wrong type", CHAT, chat(talker={"top_k": "many"}), "top_k", "talker")
    yield Case("talker's seed", CHAT, chat(talker={"seed": 2**64}), "64 bits", "talker.seed")
    yield Case("talker's number of 4000 digits", CHAT, chat(talker={"top_k": 10**3999}), "64 bits", "talker.top_k")
    deep: Any = {}
    for _ in range(20):
        deep = {"a": deep}
    yield Case("talker nested deep", CHAT, chat(talker=deep), "at most 16 levels")
    yield Case("talker of a long text", CHAT, chat(talker={"stop": "x" * (25 << 20)}), "at most 25165824")
    yield Case("talker with stop", CHAT, chat(talker={"stop": ["x"]}), "top level", "talker")
    yield Case("talker's temperature", CHAT, chat(talker={"temperature": -1}), "temperature", "talker")
    too_long = "word " * 200_000
    yield Case("a prompt too long", CHAT, chat(messages=[{"role": "user", "content": too_long}]), "tokens")
    yield Case("a text too long", SPEECH, _with(SPEECH, "input", "x" * (5 << 20)), "at most", "input")
