"""How many connections the front takes, and how long it waits for a request on one: they use the descriptors of its
process, in which the server's supervisor runs, too."""

from __future__ import annotations

import asyncio
import resource

from uvicorn.protocols.http.h11_impl import H11Protocol

REQUEST_S = 10.0
"""Seconds from a connection's begin, or the end of an answer on it, until the next request's head must be there.
uvicorn itself would wait for ever for a first request, and for the rest of any that has begun."""

_MOST = 4096


def most_connections() -> int:
    """For uvicorn's `limit_concurrency`: while there are more connections, HTTP requests are answered with 503. An
    eighth of the descriptors, since a request may take one more (`/metrics` does), and twice as many are accepted."""
    return min(_MOST, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 8)


class BoundedProtocol(H11Protocol):
    """One connection, which is closed where its client sends no request, or where there are too many to answer."""

    _timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if self.limit_concurrency is not None and len(self.connections) > 2 * self.limit_concurrency:
            transport.abort()
        else:
            self._set_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._stop_timer()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._set_timer()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._set_timer()

    def _set_timer(self) -> None:
        """It runs on while the same request is awaited, whatever part of it comes."""
        answering = self.cycle is not None and not self.cycle.response_complete
        upgraded = self.transport.get_protocol() is not self
        if answering or upgraded or self.transport.is_closing():
            self._stop_timer()
        elif self._timer is None:
            self._timer = self.loop.call_later(REQUEST_S, self.transport.close)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
