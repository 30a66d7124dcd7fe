"""How many connections the front takes, and how long it waits for the client on one: they use the descriptors of its
process, in which the server's supervisor runs, too."""

from __future__ import annotations

import asyncio
import resource

from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

REQUEST_S = 10.0
"""Seconds from a connection's begin, or the end of an answer on it, until the next request's head must be there.
uvicorn itself would wait for ever for a first request, and for the rest of any that has begun."""

SEND_S = 60.0
"""Seconds in which a client must take some of its answer where it is behind, as nginx has it (`send_timeout`). Without
this a client that reads nothing would keep its connection for ever."""

_MOST = 4096


def most_connections() -> int:
    """For uvicorn's `limit_concurrency`: while there are more connections, HTTP requests are answered with 503. An
    eighth of the descriptors, since a request may take one more (`/metrics` does), and twice as many are accepted."""
    return min(_MOST, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 8)


class _Watched(asyncio.Protocol):
    """Cuts a connection off where its client takes nothing of what is sent, also of the last that is, for `SEND_S`."""

    transport: asyncio.Transport
    loop: asyncio.AbstractEventLoop
    _sending: asyncio.TimerHandle | None = None

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._stop_sending()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._watch_sending()

    def resume_writing(self) -> None:
        super().resume_writing()
        if not self.transport.is_closing():  # else the last of it is waited for
            self._stop_sending()

    def _watch_sending(self) -> None:
        if self._sending is None:
            unsent = self.transport.get_write_buffer_size()
            self._sending = self.loop.call_later(SEND_S, self._look_at_sending, unsent)

    def _look_at_sending(self, before: int) -> None:
        self._sending = None
        if self.transport.get_write_buffer_size() < before:
            self._watch_sending()
        else:
            self.transport.abort()

    def _stop_sending(self) -> None:
        if self._sending is not None:
            self._sending.cancel()
            self._sending = None


class BoundedProtocol(_Watched, H11Protocol):
    """One connection, which is closed where its client neither asks nor reads, or where there are too many to answer.

    Bodies have a time of their own, see `bodies`.
    """

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
        if answering or upgraded:
            self._stop_timer()
        elif self.transport.is_closing():
            self._stop_timer()
            self._watch_sending()
        elif self._timer is None:
            self._timer = self.loop.call_later(REQUEST_S, self._close)

    def _close(self) -> None:
        self.transport.close()
        self._set_timer()

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class BoundedWebSocket(_Watched, WebSocketsSansIOProtocol):
    """A WebSocket, whose client must answer pings (uvicorn's), and read."""

    def on_task_complete(self, task: asyncio.Task[None]) -> None:
        super().on_task_complete(task)
        self._watch_sending()  # the application is done with it
