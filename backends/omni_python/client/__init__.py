"""A Python client for pipelines served by this backend, over Triton's gRPC protocol."""

from omni_python.client._client import OmniClient
from omni_python.client._errors import (
    ConnectionLost,
    OmniClientError,
    RequestFailed,
    ServerUnreachable,
    UnknownPipeline,
)
from omni_python.client._events import Answer, AudioChunk, Event, Finished, TextDelta, save_wav
from omni_python.client._inputs import File, RequestOptions

__all__ = [
    "Answer",
    "AudioChunk",
    "ConnectionLost",
    "Event",
    "File",
    "Finished",
    "OmniClient",
    "OmniClientError",
    "RequestFailed",
    "RequestOptions",
    "ServerUnreachable",
    "TextDelta",
    "UnknownPipeline",
    "save_wav",
]
