"""From a request's tensors to an `OmniRequest`. Pure: tensors are numpy arrays here, so it is tested without Triton."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from omni_python.glue.inputs import Inputs
from omni_python.glue.messages import conversation
from omni_python.glue.parameters import cancel_key, parameter, sampling_parameters, stages, timeout, trace_wish
from omni_python.proto.errors import InvalidArgument
from omni_python.proto.request import OmniRequest
from omni_python.proto.tensors import AUDIO_FORMATS
from omni_python.proto.trace_context import TraceWish

MAX_NAME = 256
"""Bytes of a voice's name, or of a modality's."""

MAX_MODALITIES = 16
"""In one request; there are fewer."""

N = TypeVar("N", str, str | None)


@dataclass(frozen=True)
class ParsedRequest:
    request: OmniRequest
    audio_format: str
    """One of `AUDIO_FORMATS`: how the client wants speech."""
    timeout: float | None = None
    """Seconds that the request may take; None for the pipeline's own limit."""
    trace: TraceWish | None = None
    """None where the request says nothing of it."""
    record: tuple[str, ...] = ()
    """The stages to be recorded."""
    cancel_key: str = ""
    """By which the request may be ended; "" where it has none."""


def parse_request(tensors: Mapping[str, np.ndarray], parameters: Mapping[str, Any] | None = None) -> ParsedRequest:
    """Read a request's input tensors, by name, and its Triton parameters.

    Parameters are where HTTP's `generate` puts JSON keys that are no inputs; as in vllm_backend they may hold sampling
    parameters. Raises `InvalidArgument` or `Unsupported`, naming the input and what is valid.
    """
    inputs = Inputs(tensors)
    sampling, own = sampling_parameters(inputs, parameters)
    seconds = timeout(sampling.pop("timeout_ms", None))
    wish = trace_wish(sampling)
    record = stages(sampling.pop("record", None))
    key = cancel_key(own.get("cancel_key"))
    audio_format = inputs.string("audio_format") or AUDIO_FORMATS[0]
    if audio_format not in AUDIO_FORMATS:
        raise InvalidArgument(f"audio_format: {audio_format!r} is not one of {', '.join(AUDIO_FORMATS)}")
    request = OmniRequest(
        messages=conversation(inputs),
        modalities=[_name("modalities", name) for name in inputs.strings("modalities", MAX_MODALITIES)] or None,
        voice=_name("voice", inputs.string("voice") or parameter(own, "voice", str)),
        sampling=sampling,
        stream=inputs.flag("stream", parameter(own, "stream", bool) or False),
        echo=not inputs.flag("exclude_input_in_output", parameter(own, "exclude_input_in_output", bool) is not False),
    )
    return ParsedRequest(request, audio_format, seconds, wish, record, key)


def _name(where: str, name: N) -> N:
    if name is not None and len(name.encode()) > MAX_NAME:
        raise InvalidArgument(f"{where}: has {len(name.encode())} bytes; names have at most {MAX_NAME}")
    return name
