"""The client for asyncio."""

from __future__ import annotations

import copy
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from types import TracebackType
from typing import Unpack

import numpy as np

from omni_python.client._async_http_transport import AsyncHttpTransport
from omni_python.client._async_transport import AsyncTransport
from omni_python.client._events import Answer, Event, EventReader, described, told_trace
from omni_python.client._http import is_http
from omni_python.client._inputs import DESCRIBE, RequestOptions, request_inputs, time_limit, trace_inputs
from omni_python.client._regions import SharedMemory, checked_kind
from omni_python.proto.info import PipelineInfo
from omni_python.proto.trace import Trace


class AsyncOmniClient:
    """Talks to one pipeline of one server, from one event loop; otherwise as `OmniClient`.

        async with AsyncOmniClient("localhost:8001", "qwen3_omni") as client:
            async for event in client.stream("Tell me a story.", voice="chelsie"):
                ...  # TextDelta, AudioChunk, and at last Finished

    Cancelling the task, or closing the iterator (`aclose`), cancels the request.
    """

    def __init__(
        self, url: str = "localhost:8001", pipeline: str = "qwen3_omni", *, shared_memory: SharedMemory | None = None
    ) -> None:
        """As `OmniClient`."""
        self.pipeline = pipeline
        memory = checked_kind(shared_memory, is_http(url))
        self._transport: AsyncTransport | AsyncHttpTransport = (
            AsyncHttpTransport(url) if is_http(url) else AsyncTransport(url, memory)
        )

    async def __aenter__(self) -> AsyncOmniClient:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connection; requests that still run are cancelled. Waits, for two seconds at most, until those that
        were left have ended."""
        await self._transport.close()

    def of(self, pipeline: str) -> AsyncOmniClient:
        """A client for another pipeline of the server, on the same connection: it goes with this one's `close`."""
        other = copy.copy(self)
        other.pipeline = pipeline
        return other

    async def is_ready(self) -> bool:
        """Whether the server answers and the pipeline is loaded."""
        return await self._transport.is_ready(self.pipeline)

    async def pipelines(self) -> list[str]:
        """The names of the server's pipelines that are ready. Raises `ServerUnreachable`."""
        return await self._transport.pipelines()

    async def info(self) -> PipelineInfo:
        """As `OmniClient.info`."""
        return described([outputs async for outputs in self._transport.infer(self.pipeline, DESCRIBE)])

    async def trace(self, name: str = "") -> Trace:
        """As `OmniClient.trace`."""
        return told_trace([outputs async for outputs in self._transport.infer(self.pipeline, trace_inputs(name))])

    async def chat(self, text: str | None = None, **options: Unpack[RequestOptions]) -> Answer:
        """Ask, and wait for the whole answer. Takes and raises what `OmniClient.stream` does."""
        inputs = request_inputs(text, options, stream=False)
        return Answer.collect([event async for event in self._events(inputs, time_limit(options))])

    def stream(self, text: str | None = None, **options: Unpack[RequestOptions]) -> AsyncGenerator[Event, None]:
        """Ask, and get the answer's events as they come; takes and raises what `OmniClient.stream` does."""
        return self._events(request_inputs(text, options, stream=True), time_limit(options))

    async def _events(self, inputs: Mapping[str, np.ndarray], limit: float | None) -> AsyncGenerator[Event, None]:
        reader = EventReader()
        async with aclosing(self._transport.infer(self.pipeline, inputs, limit)) as responses:
            async for outputs in responses:
                for event in reader.read(outputs):
                    yield event
        yield reader.end(self._transport.url)
