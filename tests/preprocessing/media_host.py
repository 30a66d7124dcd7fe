"""A host of media on loopback that misbehaves as asked, and a record of every connection that this process opens."""

from __future__ import annotations

import socketserver
import ssl
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

_recorded: list[list[str]] = []


def _audit(event: str, arguments: tuple[Any, ...]) -> None:
    if event == "socket.connect" and _recorded and isinstance(arguments[1], tuple):
        _recorded[-1].append(str(arguments[1][0]))


sys.addaudithook(_audit)


@contextmanager
def connections() -> Iterator[list[str]]:
    """The addresses to which the body opens TCP connections."""
    _recorded.append([])
    try:
        yield _recorded[-1]
    finally:
        _recorded.pop()


class Resolver:
    """Answers each look-up of a name with its next list of addresses, the last one again and again."""

    def __init__(self, **answers: list[list[str]]) -> None:
        self.answers = {f"{name}.test": lists for name, lists in answers.items()}
        self.asked: list[str] = []

    def __call__(self, host: str, port: int) -> list[str]:
        self.asked.append(host)
        answers = self.answers.get(host)
        if answers is None:
            raise OSError("no such name")
        return answers.pop(0) if len(answers) > 1 else answers[0]


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *arguments: Any) -> None:
        pass

    def do_GET(self) -> None:
        path, _, query = self.path.partition("?")
        self.server.seen.append(dict(self.headers))  # type: ignore[attr-defined]
        with suppress(OSError):
            getattr(self, f"_{path.strip('/').replace('.', '_')}")(query)

    def _answer(self, status: int, body: bytes = b"", **headers: str) -> None:
        self.send_response(status)
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        for name, value in {"Content-Length": str(len(body)), **named}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def _photo(self, query: str) -> None:
        self._answer(200, b"photo" + query.encode())

    def _to(self, query: str) -> None:
        self._answer(302, Location=query)

    def _nowhere(self, query: str) -> None:
        self._answer(302)

    def _missing(self, query: str) -> None:
        self._answer(404, b"no")

    def _empty(self, query: str) -> None:
        self._answer(200)

    def _huge(self, query: str) -> None:
        self._answer(200, b"x", Content_Length=str(10 << 30))

    def _zipped(self, query: str) -> None:
        self._answer(200, b"\x1f\x8b", Content_Encoding="gzip")

    def _endless(self, query: str) -> None:
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        while True:
            self.wfile.write(b"10000\r\n" + b"x" * 0x10000 + b"\r\n")

    def _cut(self, query: str) -> None:
        self._answer(200, b"half", Content_Length="8")
        self.close_connection = True

    def _drip(self, query: str) -> None:
        self._answer(200, b"", Content_Length="1000000")
        self._drip_bytes(b"x")

    def _drip_header(self, query: str) -> None:
        self.wfile.write(b"HTTP/1.1 200 OK\r\nX: ")
        self._drip_bytes(b"y")

    def _drip_bytes(self, byte: bytes) -> None:
        while True:
            self.wfile.write(byte)
            time.sleep(0.02)

    def _long_header(self, query: str) -> None:
        self._answer(200, b"x", **{f"X{n}": "y" * 60_000 for n in range(4)})

    def _garbage(self, query: str) -> None:
        self.wfile.write(b"\x00\xff nothing like HTTP\r\n\r\n")
        self.close_connection = True


class Host(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False

    def __init__(self, context: ssl.SSLContext | None = None) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.seen: list[dict[str, str]] = []
        """The headers of each request."""
        if context is not None:
            self.socket = context.wrap_socket(self.socket, server_side=True)

    @property
    def port(self) -> int:
        return int(self.server_address[1])

    def handle_error(self, request: Any, client_address: Any) -> None:
        pass  # a client that leaves is what most tests want


@contextmanager
def running(server: socketserver.BaseServer) -> Iterator[None]:
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
