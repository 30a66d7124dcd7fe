"""A Python client for pipelines served by this backend.

`OmniClient` blocks, `AsyncOmniClient` is for asyncio. An answer is an `Answer`, or a stream of events: `TextDelta`,
`AudioChunk` and at last `Finished`. `played` plays speech as it comes. In a notebook answers show their text and a
player. All errors are kinds of `OmniClientError`.
"""

from omni_python.client._async_client import AsyncOmniClient
from omni_python.client._client import OmniClient
from omni_python.client._errors import (
    ConnectionLost,
    DeadlineExceeded,
    InvalidRequest,
    NotFound,
    NotSupported,
    OmniClientError,
    RequestFailed,
    ServerUnreachable,
    Unavailable,
    UnknownPipeline,
)
from omni_python.client._events import Answer, AudioChunk, Event, Finished, Recorded, TextDelta, save_wav
from omni_python.client._inputs import File, RequestOptions
from omni_python.client._playback import PlaybackUnavailable, Sink, played
from omni_python.client._replay import replay
from omni_python.proto.info import PipelineInfo
from omni_python.proto.timing import StageTiming
from omni_python.proto.trace import Trace

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
    "NotFound",
    "NotSupported",
    "OmniClient",
    "OmniClientError",
    "PipelineInfo",
    "PlaybackUnavailable",
    "Recorded",
    "RequestFailed",
    "RequestOptions",
    "ServerUnreachable",
    "Sink",
    "StageTiming",
    "TextDelta",
    "Trace",
    "Unavailable",
    "UnknownPipeline",
    "played",
    "replay",
    "save_wav",
]
