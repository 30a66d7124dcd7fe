"""Triton's `generate_stream` over HTTP, translated: what the blocking and the async transport have in common.

It carries JSON: files go inside the messages as base64, speech comes back as 16-bit samples (gRPC keeps float32). Each
response is one server-sent event. Triton's own streaming `infer` is for gRPC alone; over HTTP it refuses such models.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Mapping
from typing import Any, TypeVar
from urllib.parse import quote

import httpcore
import numpy as np

from omni_python.client import _protocol
from omni_python.client._errors import (
    ConnectionLost,
    DeadlineExceeded,
    InvalidRequest,
    OmniClientError,
    RequestFailed,
    ServerUnreachable,
)


class Gibberish(Exception):
    """What came is nothing that Triton says: something else listens there."""


LOST = (httpcore.NetworkError, httpcore.TimeoutException, httpcore.ProtocolError, Gibberish)
"""What is raised where the connection fails, or leads to another server."""

HEADERS = [("content-type", "application/json")]
_Parsed = TypeVar("_Parsed", dict[str, Any], list[dict[str, Any]])
_PARTS = {"images": "image_url", "videos": "video_url"}


def is_http(url: str) -> bool:
    """Whether an address is that of an HTTP service, and not gRPC's host:port."""
    return url.startswith(("http://", "https://"))


def address(url: str, model: str, what: str) -> str:
    """The URL of something of a model's."""
    return f"{url.rstrip('/')}/v2/models/{quote(model, safe='')}/{what}"


def index_address(url: str) -> str:
    return f"{url.rstrip('/')}/v2/repository/index"


def timeouts(seconds: float | None) -> dict[str, Any]:
    """httpcore's request extension: `seconds` without a byte from the server, forever if None."""
    return {
        "timeout": {
            "connect": _protocol.LOOK_UP_S,
            "pool": _protocol.LOOK_UP_S,
            "read": seconds,
            "write": seconds,
        }
    }


def body(inputs: Mapping[str, np.ndarray]) -> bytes:
    """A request's JSON. Raises `InvalidRequest` for files beside messages that do not end with the user's."""
    files = _files(inputs)
    fields = {name: _field(array) for name, array in inputs.items() if name not in ("audios", *_PARTS)}
    if "describe" not in fields:
        fields["audio_format"] = "pcm16"
    if files:
        text, messages = fields.pop("text_input", None), json.loads(fields.get("messages", "[]"))
        if not messages:
            messages = [{"role": "user", "content": text or []}]
        if messages[-1].get("role") != "user":
            raise InvalidRequest("audios, images and videos belong to the last message, whose role must then be 'user'")
        content = messages[-1]["content"]
        said = [{"type": "text", "text": content}] if isinstance(content, str) else content
        messages[-1] = {**messages[-1], "content": [*files, *said]}
        fields["messages"] = json.dumps(messages)
    return json.dumps(fields).encode()


def _files(inputs: Mapping[str, np.ndarray]) -> list[dict[str, Any]]:
    """The files of a request as parts of a message."""
    parts: list[dict[str, Any]] = [
        {"type": "input_audio", "input_audio": {"data": base64.b64encode(file).decode()}}
        for file in inputs.get("audios", ())
    ]
    for name, kind in _PARTS.items():
        for file in inputs.get(name, ()):
            url = "data:application/octet-stream;base64," + base64.b64encode(file).decode()
            parts.append({"type": kind, kind: {"url": url}})
    return parts


def _field(array: np.ndarray) -> Any:
    """A tensor as `generate` takes it: a single value bare, several in a list."""
    values = [item.decode() if isinstance(item, bytes) else item for item in array.tolist()]
    return values[0] if len(values) == 1 else values


class Replies:
    """Cuts the bytes of a stream into its events."""

    def __init__(self) -> None:
        self._rest = b""

    def read(self, data: bytes) -> Iterator[dict[str, Any]]:
        """The events that `data` completes."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            if line.startswith(b"data:"):
                yield _parsed(line[len(b"data:") :], dict)


def outputs(reply: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """The tensors of an event, by the names that they have over gRPC."""
    result: dict[str, np.ndarray] = {}
    for name, value in reply.items():
        if name == "audio_base64":
            pcm = np.frombuffer(base64.b64decode(value), "<i2")
            result["audio_output"] = pcm.astype(np.float32) / np.float32(32767)
        else:
            result[name] = np.array([value.encode() if isinstance(value, str) else value], object)
    return result


def error_message(data: bytes) -> str:
    """What a reply of another status than 200 says: a JSON object, or an event with one."""
    try:
        return str(json.loads(data.removeprefix(b"data:"))["error"])
    except (ValueError, KeyError, TypeError):
        return data.decode(errors="replace")[:200] or "the server answered without a word"


def refusal(message: str, model: str, url: str, ready: list[str]) -> RequestFailed:
    """The error for a message of a pipeline, or of Triton's own."""
    known = _protocol.refusal(message.rstrip(". "))
    if known is not None:
        return known
    return RequestFailed(message) if model in ready else _protocol.unknown_pipeline(message, url, ready)


def failure(error: Exception, url: str, answered: bool, limit: float | None) -> OmniClientError:
    """The error of a call that did not come to its end; `answered` if a part of the answer came before."""
    if isinstance(error, httpcore.ReadTimeout | httpcore.WriteTimeout) and limit is not None:
        return late(url, limit)
    if isinstance(error, Gibberish):
        return ServerUnreachable(
            f"what answers at {url} is no Triton server; its HTTP port is 8000 unless it was changed"
        )
    reason = f": {error}" if str(error) else ""
    if answered:
        return ConnectionLost(f"lost the connection to {url} in the middle of the answer{reason}")
    return ServerUnreachable(f"no Triton server answers at {url} (its HTTP port){reason}")


def late(url: str, limit: float) -> DeadlineExceeded:
    return DeadlineExceeded(f"{url} did not end the request within {limit:g} s")


def is_pipeline(config: bytes) -> bool:
    """Whether a model's configuration is that of an orchestrator."""
    role = _parsed(config, dict).get("parameters", {}).get("omni_role", {})
    return bool(role.get("string_value") == "orchestrator")


def ready_models(index: bytes) -> list[str]:
    """The names in a repository index."""
    return sorted(model["name"] for model in _parsed(index, list))


def _parsed(data: bytes, kind: type[_Parsed]) -> _Parsed:
    """A JSON object or list. Raises `Gibberish` for anything else."""
    try:
        value = json.loads(data)
    except ValueError:
        raise Gibberish from None
    if not isinstance(value, kind):
        raise Gibberish
    return value
