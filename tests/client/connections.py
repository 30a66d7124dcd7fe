"""A connection that a test can cut."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable
from types import TracebackType


class Cable:
    """Listens on a free port and passes every byte on to a server, both ways, until `cut`."""

    def __init__(self, host: str, port: int) -> None:
        self._server = (host, port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._sockets: list[socket.socket] = []
        self.url = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._spawn(self._accept)

    def __enter__(self) -> Cable:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.cut()

    def cut(self) -> None:
        for end in (self._listener, *self._sockets):
            with contextlib.suppress(OSError):  # the other side was first
                end.shutdown(socket.SHUT_RDWR)
            end.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            server = socket.create_connection(self._server)
            self._sockets += [client, server]
            self._spawn(_pump, client, server)
            self._spawn(_pump, server, client)

    @staticmethod
    def _spawn(target: Callable[..., None], *args: socket.socket) -> None:
        threading.Thread(target=target, args=args, daemon=True).start()


def _pump(source: socket.socket, sink: socket.socket) -> None:
    with contextlib.suppress(OSError):  # cut
        while data := source.recv(65536):
            sink.sendall(data)
