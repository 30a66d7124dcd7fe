"""A Python client for pipelines served by this backend, over Triton's gRPC protocol."""

from omni_python.client._client import OmniClient
from omni_python.client._errors import OmniClientError, RequestFailed, ServerUnreachable
from omni_python.client._events import Answer, AudioChunk, Event, Finished, TextDelta

__all__ = [
    "Answer",
    "AudioChunk",
    "Event",
    "Finished",
    "OmniClient",
    "OmniClientError",
    "RequestFailed",
    "ServerUnreachable",
    "TextDelta",
]
