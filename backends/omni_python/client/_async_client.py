"""The client for asyncio."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from types import TracebackType
from typing import Unpack

import numpy as np

from omni_python.client._async_transport import AsyncTransport
from omni_python.client._events import Answer, Event, EventReader
from omni_python.client._inputs import RequestOptions, request_inputs


class AsyncOmniClient:
    """Talks to one pipeline of one server, from one event loop; otherwise as `OmniClient`.

        async with AsyncOmniClient("localhost:8001", "qwen3_omni") as client:
            async for event in client.stream("Tell me a story.", voice="chelsie"):
                ...  # TextDelta, AudioChunk, and at last Finished

    Cancelling the task, or closing the iterator (`aclose`), cancels the request.
    """

    def __init__(self, url: str = "localhost:8001", pipeline: str = "qwen3_omni") -> None:
        """`url` is host:port of the server's gRPC service."""
        self.pipeline = pipeline
        self._transport = AsyncTransport(url)

    async def __aenter__(self) -> AsyncOmniClient:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connection; requests that still run are cancelled."""
        await self._transport.close()

    async def is_ready(self) -> bool:
        """Whether the server answers and the pipeline is loaded."""
        return await self._transport.is_ready(self.pipeline)

    async def pipelines(self) -> list[str]:
        """The names of the server's pipelines that are ready. Raises `ServerUnreachable`."""
        return await self._transport.pipelines()

    async def chat(self, text: str | None = None, **options: Unpack[RequestOptions]) -> Answer:
        """Ask, and wait for the whole answer. Takes and raises what `OmniClient.stream` does."""
        inputs = request_inputs(text, options, stream=False)
        return Answer.collect([event async for event in self._events(inputs)])

    def stream(self, text: str | None = None, **options: Unpack[RequestOptions]) -> AsyncGenerator[Event, None]:
        """Ask, and get the answer's events as they come; takes and raises what `OmniClient.stream` does."""
        return self._events(request_inputs(text, options, stream=True))

    async def _events(self, inputs: Mapping[str, np.ndarray]) -> AsyncGenerator[Event, None]:
        reader = EventReader()
        async for outputs in self._transport.infer(self.pipeline, inputs):
            for event in reader.read(outputs):
                yield event
        yield reader.end(self._transport.url)
