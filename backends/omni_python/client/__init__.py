"""A Python client for pipelines served by this backend, over Triton's gRPC protocol."""

from omni_python.client._async_client import AsyncOmniClient
from omni_python.client._client import OmniClient
from omni_python.client._errors import (
    ConnectionLost,
    DeadlineExceeded,
    InvalidRequest,
    NotSupported,
    OmniClientError,
    RequestFailed,
    ServerUnreachable,
    Unavailable,
    UnknownPipeline,
)
from omni_python.client._events import Answer, AudioChunk, Event, Finished, TextDelta, save_wav
from omni_python.client._inputs import File, RequestOptions
from omni_python.proto.info import PipelineInfo
from omni_python.proto.timing import StageTiming

__all__ = [
    "Answer",
    "AsyncOmniClient",
    "AudioChunk",
    "ConnectionLost",
    "DeadlineExceeded",
    "Event",
    "File",
    "Finished",
    "InvalidRequest",
    "NotSupported",
    "OmniClient",
    "OmniClientError",
    "PipelineInfo",
    "RequestFailed",
    "RequestOptions",
    "ServerUnreachable",
    "StageTiming",
    "TextDelta",
    "Unavailable",
    "UnknownPipeline",
    "save_wav",
]
