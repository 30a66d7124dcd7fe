"""From what the caller asks to the tensors of a request."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypedDict

import numpy as np

from omni_python.client._watch import MARGIN

File = str | Path | bytes
"""A file: its path, or its contents."""


class RequestOptions(TypedDict, total=False):
    """What a request may say beside its text. None stands for a missing option."""

    messages: Sequence[Mapping[str, Any]] | None
    """The conversation in OpenAI's form (role, and content as text or parts), instead of `text`."""
    audios: Sequence[File]
    """Sound files of any common format; like all media they go with the last message, which must be the user's."""
    images: Sequence[File]
    videos: Sequence[File]
    audio: np.ndarray | None
    """Mono sound as samples [n] in -1..1, at `audio_sample_rate` Hz."""
    audio_sample_rate: int | None
    modalities: Sequence[str]
    """What to answer with: "text", "audio" or both. Default: what the pipeline gives."""
    voice: str | None
    """Whose voice speaks; an unknown name is refused with the names that there are."""
    sampling: Mapping[str, Any] | None
    """Parameters of the text stage by name, and an object for each stage that has its own, for example
    `{"temperature": 0.7, "talker": {"seed": 1}}`."""
    trace: bool | None
    """Whether to trace the request: `Finished.trace` then tells what each stage did when. Default: as `traceparent`, or
    else the pipeline's configuration, says."""
    traceparent: str | None
    """The caller's span as a W3C Trace Context header: the server's spans become its children where it is sampled."""


DESCRIBE = {"describe": np.array([True])}
"""The inputs that ask for a pipeline's description."""


def trace_inputs(name: str) -> dict[str, np.ndarray]:
    """The inputs that ask for a trace."""
    return {"trace_id": _bytes_tensor([name.encode()])}


def request_inputs(text: str | None, options: RequestOptions, *, stream: bool) -> dict[str, np.ndarray]:
    """The request's input tensors by name.

    Raises TypeError for an option that does not exist or has the wrong type, and OSError for files that cannot be read.
    """
    unknown = sorted(options.keys() - RequestOptions.__annotations__.keys())
    if unknown:
        raise TypeError(f"unknown option {unknown[0]!r}; there are {', '.join(RequestOptions.__annotations__)}")
    messages, voice, sampling = options.get("messages"), options.get("voice"), _parameters(options)
    audio, rate = options.get("audio"), options.get("audio_sample_rate")
    texts = {
        "text_input": [] if text is None else [text],
        "messages": [] if messages is None else [json.dumps(messages)],
        "modalities": _listed("modalities", options.get("modalities")),
        "voice": [] if voice is None else [voice],
        "sampling_parameters": [] if sampling is None else [json.dumps(sampling)],
    }
    inputs = {name: _bytes_tensor([text.encode() for text in values]) for name, values in texts.items() if values}
    files = {
        "audios": _listed("audios", options.get("audios")),
        "images": _listed("images", options.get("images")),
        "videos": _listed("videos", options.get("videos")),
    }
    inputs |= {name: _bytes_tensor([_read(file) for file in values]) for name, values in files.items() if values}
    if stream:
        inputs["stream"] = np.array([True])
    if audio is not None:
        inputs["audio"] = np.asarray(audio, np.float32)
    if rate is not None:
        inputs["audio_sample_rate"] = np.array([rate], np.int32)
    return inputs


def _parameters(options: RequestOptions) -> Mapping[str, Any] | None:
    """The sampling parameters, with those about the trace, which travel beside them."""
    about = {"trace": options.get("trace"), "traceparent": options.get("traceparent")}
    given = {name: value for name, value in about.items() if value is not None}
    sampling = options.get("sampling")
    return {**(sampling or {}), **given} if given else sampling


def time_limit(options: RequestOptions) -> float | None:
    """Seconds after which the client gives up a request with a `timeout_ms` that the server has not ended."""
    timeout = (options.get("sampling") or {}).get("timeout_ms")
    if isinstance(timeout, int | float) and timeout > 0:
        return timeout / 1000 + MARGIN
    return None  # the server refuses other values


def _listed(name: str, values: Any) -> Sequence[Any]:
    """`values`, unless it is a single one, of which Python would make a list of letters."""
    if isinstance(values, str | bytes | Path):
        raise TypeError(f"{name}: must be a list, also for a single one: [{values!r:.80}]")
    return values or ()


def _bytes_tensor(values: list[bytes]) -> np.ndarray:
    return np.array(values, np.object_)


def _read(file: File) -> bytes:
    return file if isinstance(file, bytes) else Path(file).read_bytes()
