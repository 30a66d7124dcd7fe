"""Triton's streaming inference call over HTTP, for asyncio."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Mapping

import httpcore
import numpy as np

from omni_python.client import _http, _protocol
from omni_python.client._errors import RequestFailed


class AsyncHttpTransport:
    """Connections to one server, of one event loop; any number of calls at once."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._pool = httpcore.AsyncConnectionPool(max_connections=None)

    async def close(self) -> None:
        await self._pool.aclose()

    async def is_ready(self, model: str) -> bool:
        """Whether the model is ready; False also where no server answers."""
        try:
            return (await self._call("GET", _http.address(self.url, model, "ready"))).status == 200
        except _http.LOST:
            return False

    async def infer(
        self, model: str, inputs: Mapping[str, np.ndarray], limit: float | None = None
    ) -> AsyncGenerator[dict[str, np.ndarray], None]:
        """As `HttpTransport.infer`."""
        end = None if limit is None else time.monotonic() + limit
        answered = False
        try:
            async with self._pool.stream(
                "POST",
                _http.address(self.url, model, "generate_stream"),
                headers=_http.HEADERS,
                content=_http.body(inputs),
                extensions=_http.timeouts(limit),
            ) as response:
                if response.status != 200:
                    raise await self._refusal(model, _http.error_message(await response.aread()))
                replies = _http.Replies()
                async for data in response.aiter_stream():
                    for reply in replies.read(data):
                        if "error" in reply:
                            raise await self._refusal(model, reply["error"])
                        answered = True
                        yield _http.outputs(reply)
                    if end is not None and limit is not None and time.monotonic() > end:
                        raise _http.late(self.url, limit)
        except _http.LOST as error:
            raise _http.failure(error, self.url, answered, limit) from None

    async def pipelines(self) -> list[str]:
        """The pipelines that are ready, sorted. Raises `ServerUnreachable`."""
        try:
            index = (await self._call("POST", _http.index_address(self.url), b'{"ready": true}')).content
            return [model for model in _http.ready_models(index) if await self._is_pipeline(model)]
        except _http.LOST as error:
            raise _http.failure(error, self.url, answered=False, limit=None) from None

    async def _is_pipeline(self, model: str) -> bool:
        return _http.is_pipeline((await self._call("GET", _http.address(self.url, model, "config"))).content)

    async def _call(self, method: str, url: str, content: bytes | None = None) -> httpcore.Response:
        return await self._pool.request(
            method, url, headers=_http.HEADERS, content=content, extensions=_http.timeouts(_protocol.LOOK_UP_S)
        )

    async def _refusal(self, model: str, message: str) -> RequestFailed:
        ready = [] if _protocol.refusal(message) else await self.pipelines()
        return _http.refusal(message, model, self.url, ready)
