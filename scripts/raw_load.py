"""A load of gRPC requests that costs little itself: raw HTTP/2 on a few connections, all on one thread.

A Python gRPC client needs about as much CPU for a request as the server that is measured here, on the same machine.
"""

from __future__ import annotations

import itertools
import selectors
import time
from collections.abc import Sequence

from raw_connection import Connection, Request
from tritonclient.grpc import service_pb2

_TICK_S = 0.01
_CONNECTIONS = 8


class Load:
    """Connections to `host:port`, on each of which requests can be sent and their ends awaited: each connection has
    one of `requests`, in turn.

    `timeout` is the seconds after which gRPC itself ends a request, as clients with deadlines ask it to; None: never.
    """

    def __init__(
        self, url: str, requests: Sequence[service_pb2.ModelInferRequest], timeout: float | None = None
    ) -> None:
        self._selector = selectors.DefaultSelector()
        messages = itertools.islice(
            itertools.cycle([request.SerializeToString() for request in requests]), _CONNECTIONS
        )
        self._connections = [Connection(url, message, timeout) for message in messages]
        for connection in self._connections:
            self._selector.register(connection.socket, selectors.EVENT_READ, connection)

    def close(self) -> None:
        self._selector.close()
        for connection in self._connections:
            connection.socket.close()

    @property
    def outstanding(self) -> int:
        return sum(len(connection.open) for connection in self._connections)

    def closed_loop(self, concurrency: int, seconds: float) -> list[Request]:
        """Those that ended within `seconds` while `concurrency` were always there; waits for the last ones, too."""
        end = time.perf_counter() + seconds
        ended: list[Request] = []
        self._send([time.perf_counter()] * concurrency)
        while self.outstanding:
            done = self._receive(_TICK_S)
            ended += [request for request in done if request.ended < end]
            if time.perf_counter() < end:
                self._send([time.perf_counter()] * len(done))
        return ended

    def batch(self, total: int, concurrency: int) -> list[Request]:
        """`total` requests, always `concurrency` of them in flight, in the order of their ends."""
        sent = min(concurrency, total)
        ended: list[Request] = []
        self._send([time.perf_counter()] * sent)
        while self.outstanding:
            done = self._receive(_TICK_S)
            more = min(len(done), total - sent)
            self._send([time.perf_counter()] * more)
            sent += more
            ended += done
        return ended

    def send(self) -> Request:
        """One request, whose end nobody awaits."""
        return self._send([time.perf_counter()])[0]

    def cancel(self) -> None:
        """Take back all requests in flight, as a client does that leaves."""
        for connection in self._connections:
            connection.cancel()

    def open_loop(self, rate: float, seconds: float, patience: float) -> list[Request]:
        """`rate` requests a second at equal distances, whatever becomes of them; waits `patience` seconds for the last.
        Those that have no end then keep `error` None."""
        start = time.perf_counter()
        total = int(rate * seconds)
        asked: list[Request] = []
        while len(asked) < total:
            now = time.perf_counter()
            count = min(total, int((now - start) * rate) + 1) - len(asked)
            asked += self._send([start + (len(asked) + index) / rate for index in range(count)])
            self._receive(max(0.0, start + len(asked) / rate - time.perf_counter()))
        last = time.perf_counter() + patience
        while self.outstanding and time.perf_counter() < last:
            self._receive(_TICK_S)
        return asked

    def _send(self, dues: list[float]) -> list[Request]:
        """At those moments each was due."""
        requests = []
        for due in dues:
            connection = min(self._connections, key=Connection.load)
            requests.append(connection.send(due))
        for connection in self._connections:
            connection.flush()
        return requests

    def _receive(self, timeout: float) -> list[Request]:
        ended: list[Request] = []
        for key, _ in self._selector.select(timeout):
            ended += key.data.receive()
        return ended
