"""Triton's streaming inference call over HTTP, blocking."""

from __future__ import annotations

import time
from collections.abc import Generator, Mapping

import httpcore
import numpy as np

from omni_python.client import _http, _protocol
from omni_python.client._errors import RequestFailed


class HttpTransport:
    """Connections to one server; thread-safe, any number of calls at once."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._pool = httpcore.ConnectionPool(max_connections=None)

    def close(self) -> None:
        self._pool.close()

    def is_ready(self, model: str) -> bool:
        """Whether the model is ready; False also where no server answers."""
        try:
            return self._call("GET", _http.address(self.url, model, "ready")).status == 200
        except _http.LOST:
            return False

    def infer(
        self, model: str, inputs: Mapping[str, np.ndarray], limit: float | None = None
    ) -> Generator[dict[str, np.ndarray], None, None]:
        """As `Transport.infer`; an orchestrator that died is noticed by the `limit` alone."""
        end = None if limit is None else time.monotonic() + limit
        answered = False
        try:
            with self._pool.stream(
                "POST",
                _http.address(self.url, model, "generate_stream"),
                headers=_http.HEADERS,
                content=_http.body(inputs),
                extensions=_http.timeouts(limit),
            ) as response:
                if response.status != 200:
                    raise self._refusal(model, _http.error_message(response.read()))
                replies = _http.Replies()
                for data in response.iter_stream():
                    for reply in replies.read(data):
                        if "error" in reply:
                            raise self._refusal(model, reply["error"])
                        answered = True
                        yield _http.outputs(reply)
                    if end is not None and limit is not None and time.monotonic() > end:
                        raise _http.late(self.url, limit)
        except _http.LOST as error:
            raise _http.failure(error, self.url, answered, limit) from None

    def pipelines(self) -> list[str]:
        """The pipelines that are ready, sorted. Raises `ServerUnreachable`."""
        try:
            index = self._call("POST", _http.index_address(self.url), b'{"ready": true}').content
            return [
                model
                for model in _http.ready_models(index)
                if _http.is_pipeline(self._call("GET", _http.address(self.url, model, "config")).content)
            ]
        except _http.LOST as error:
            raise _http.failure(error, self.url, answered=False, limit=None) from None

    def _call(self, method: str, url: str, content: bytes | None = None) -> httpcore.Response:
        return self._pool.request(
            method, url, headers=_http.HEADERS, content=content, extensions=_http.timeouts(_protocol.LOOK_UP_S)
        )

    def _refusal(self, model: str, message: str) -> RequestFailed:
        ready = [] if _protocol.refusal(message) else self.pipelines()
        return _http.refusal(message, model, self.url, ready)
