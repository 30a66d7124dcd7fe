"""One HTTP/2 connection on which gRPC requests are sent that are all the same bytes but for their stream's number.

Of HTTP/2 (RFC 9113) there is what such an exchange needs, and what servers may hold clients to: how many streams may be
open, how much may be sent at once, and how large a frame may be. They close connections that do not keep to that.
"""

from __future__ import annotations

import socket
import struct
import time
from dataclasses import dataclass

from tritonclient.grpc import service_pb2

_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_DATA, _HEADERS, _RST_STREAM, _SETTINGS, _PING, _GOAWAY, _WINDOW_UPDATE = 0, 1, 3, 4, 6, 7, 8
_ACK = _END_STREAM = 1
_END_HEADERS, _PADDED = 4, 8
_HEADER_TABLE_SIZE, _MAX_CONCURRENT_STREAMS, _INITIAL_WINDOW_SIZE = 1, 3, 4
_REFUSED_STREAM, _CANCEL = 7, 8
_MAX_WINDOW = (1 << 31) - 1
_FIRST_WINDOW = 65_535
_MAX_FRAME = 16_384
_GRANT_AGAIN = 1 << 30
_NO_ANSWER = "the stream ended without an answer"
_HANDSHAKE_S = 10.0
_DEADLINE = "DEADLINE_EXCEEDED by gRPC"


@dataclass(slots=True)
class Request:
    """Times are seconds of `time.perf_counter`; `error` is None until the request ended, "" where it was served.
    `responses` are those with content, of which the first came at `first`; `nbytes` are those of all their tensors."""

    due: float
    sent: float = 0.0
    first: float = 0.0
    ended: float = 0.0
    responses: int = 0
    nbytes: int = 0
    error: str | None = None


class ConnectionBroken(RuntimeError):
    """The server closed a connection, or sent what a request's small exchange has no place for."""


class Connection:
    """To the server at `url`, for the request `message`; `timeout` as for `Load`."""

    def __init__(self, url: str, message: bytes, timeout: float | None) -> None:
        host, _, port = url.rpartition(":")
        self.socket = socket.create_connection((host, int(port)))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.open: dict[int, Request] = {}
        body = b"\0" + struct.pack(">I", len(message)) + message
        headers = _header_block(url, "/inference.GRPCInferenceService/ModelStreamInfer", timeout)
        self._between = _around_number(headers, body)
        self._body_bytes = len(body)
        self._window = _FIRST_WINDOW
        self._limits: dict[int, int] = {_MAX_CONCURRENT_STREAMS: _MAX_WINDOW, _INITIAL_WINDOW_SIZE: _FIRST_WINDOW}
        self._greeted = False
        self._next_stream = 1
        self._partial: dict[int, bytes] = {}  # of open streams: the beginning of a message
        self._errors: dict[int, str] = {}
        self._received = b""
        self._granted = _MAX_WINDOW
        # Without a table of headers on either side none has to be decoded.
        settings = struct.pack(">HIHI", _HEADER_TABLE_SIZE, 0, _INITIAL_WINDOW_SIZE, _MAX_WINDOW)
        grant = struct.pack(">I", _MAX_WINDOW - _FIRST_WINDOW)
        self._outgoing = bytearray(_PREFACE + _frame(_SETTINGS, 0, 0, settings) + _frame(_WINDOW_UPDATE, 0, 0, grant))
        self._unsent: list[tuple[int, Request]] = []
        self._greet()

    def load(self) -> int:
        return len(self.open)

    def send(self, due: float) -> Request:
        """Put a request into the next `flush`."""
        request = Request(due)
        self._queue(request)
        return request

    def _queue(self, request: Request) -> None:
        self.open[self._next_stream] = request
        self._unsent.append((self._next_stream, request))
        self._next_stream += 2

    def flush(self) -> None:
        """Send what the server has room for."""
        now = time.perf_counter()
        sent = 0
        room = self._limits[_MAX_CONCURRENT_STREAMS] - len(self.open) + len(self._unsent)
        for stream, request in self._unsent[: max(0, room)]:
            if self._window < self._body_bytes:
                break
            self._window -= self._body_bytes
            self._outgoing += struct.pack(">I", stream).join(self._between)
            request.sent = now
            sent += 1
        del self._unsent[:sent]
        if self._outgoing:
            self.socket.sendall(self._outgoing)
            self._outgoing.clear()

    def cancel(self) -> None:
        cancelled = struct.pack(">I", _CANCEL)
        for stream in self.open.keys() - {stream for stream, _ in self._unsent}:
            self._outgoing += _frame(_RST_STREAM, 0, stream, cancelled)
        self.open.clear()
        self._unsent.clear()
        self._partial.clear()
        self._errors.clear()
        self.flush()

    def receive(self) -> list[Request]:
        """The requests that have ended."""
        data = self.socket.recv(1 << 18)
        if not data:
            raise ConnectionBroken("the server closed the connection")
        now = time.perf_counter()
        data = self._received + data
        ended: list[Request] = []
        at = 0
        while at + 9 <= len(data):
            size = int.from_bytes(data[at : at + 3], "big")
            if at + 9 + size > len(data):
                break
            kind, flags = data[at + 3], data[at + 4]
            stream = int.from_bytes(data[at + 5 : at + 9], "big")
            self._take(kind, flags, stream, data[at + 9 : at + 9 + size], now)
            if stream in self.open and (kind == _RST_STREAM or (kind in (_DATA, _HEADERS) and flags & _END_STREAM)):
                request = self.open.pop(stream)
                request.ended = now
                self._partial.pop(stream, None)
                request.error = self._errors.pop(stream, "") or ("" if request.responses else _NO_ANSWER)
                ended.append(request)
            at += 9 + size
        self._received = data[at:]
        self.flush()
        return ended

    def _greet(self) -> None:
        """Begin the connection, and wait until the server has told its limits."""
        self.flush()
        self.socket.settimeout(_HANDSHAKE_S)
        while not self._greeted:
            self.receive()
        self.socket.settimeout(None)

    def _take_settings(self, payload: bytes) -> None:
        self._limits.update(struct.iter_unpack(">HI", payload))
        if (window := self._limits[_INITIAL_WINDOW_SIZE]) < self._body_bytes:
            raise ConnectionBroken(f"the server takes {window} bytes of a request at once, not {self._body_bytes}")
        self._outgoing += _frame(_SETTINGS, _ACK, 0)
        self._greeted = True

    def _take(self, kind: int, flags: int, stream: int, payload: bytes, now: float) -> None:
        if kind == _DATA:
            if flags & _PADDED:
                raise ConnectionBroken("the server pads its answers")
            if stream in self.open:
                self._read(stream, self._partial.pop(stream, b"") + payload, now)
            self._granted -= len(payload)
            if self._granted < _MAX_WINDOW - _GRANT_AGAIN:
                self._granted += _GRANT_AGAIN
                self._outgoing += _frame(_WINDOW_UPDATE, 0, 0, struct.pack(">I", _GRANT_AGAIN))
        elif kind == _HEADERS and flags & _END_STREAM and b"grpc-status\x010" not in payload:
            self._fail(stream, _DEADLINE if b"grpc-status\x014" in payload else f"gRPC status in {payload!r}")
        elif kind == _RST_STREAM:
            code = int.from_bytes(payload, "big")
            if code == _REFUSED_STREAM and stream in self.open:  # which the server has not looked at
                self._queue(self.open.pop(stream))
            self._fail(stream, f"the stream was reset: {code}")
        elif kind == _SETTINGS and not flags & _ACK:
            self._take_settings(payload)
        elif kind == _PING and not flags & _ACK:
            self._outgoing += _frame(_PING, _ACK, 0, payload)
        elif kind == _WINDOW_UPDATE and stream == 0:
            self._window += int.from_bytes(payload, "big")
        elif kind == _GOAWAY:
            last, code = struct.unpack_from(">II", payload)
            raise ConnectionBroken(
                f"the server says goodbye after stream {last} of {self._next_stream - 2}, with {len(self.open)} open "
                f"and error {code}: {payload[8:]!r}"
            )

    def _fail(self, stream: int, error: str) -> None:
        if stream in self.open:  # not one that was cancelled
            self._errors[stream] = error

    def _read(self, stream: int, data: bytes, now: float) -> None:
        """The messages of an answer, each behind a byte and its length."""
        request = self.open[stream]
        at = 0
        while at + 5 <= len(data):
            end = at + 5 + int.from_bytes(data[at + 1 : at + 5], "big")
            if end > len(data):
                break
            message = service_pb2.ModelStreamInferResponse.FromString(data[at + 5 : end])
            if message.error_message:
                self._errors[stream] = str(message.error_message)
            elif message.infer_response.outputs:
                request.responses += 1
                request.nbytes += sum(map(len, message.infer_response.raw_output_contents))
                request.first = request.first or now
            at = end
        if at < len(data):
            self._partial[stream] = data[at:]


def _around_number(headers: bytes, body: bytes) -> list[bytes]:
    """A request's frames, cut wherever its stream's number belongs."""
    rest = [body[at : at + _MAX_FRAME] for at in range(0, len(body), _MAX_FRAME)]
    frames = [
        (_HEADERS, _END_HEADERS, headers),
        *((_DATA, 0, part) for part in rest[:-1]),
        (_DATA, _END_STREAM, rest[-1]),
    ]
    around = [b""]
    for kind, flags, payload in frames:
        around[-1] += struct.pack(">I", len(payload))[1:] + bytes((kind, flags))
        around.append(payload)
    return around


def _frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    return struct.pack(">I", len(payload))[1:] + bytes((kind, flags)) + struct.pack(">I", stream) + payload


def _header_block(authority: str, path: str, timeout: float | None) -> bytes:
    """HPACK (RFC 7541) without its table: POST and http from the static one, the rest as literals without indexing."""
    literals = {":path": path, ":authority": authority, "te": "trailers", "content-type": "application/grpc"}
    if timeout is not None:
        literals["grpc-timeout"] = f"{timeout * 1000:.0f}m"
    return b"\x83\x86" + b"".join(b"\0" + _string(name) + _string(value) for name, value in literals.items())


def _string(text: str) -> bytes:
    data = text.encode()
    if len(data) > 126:
        raise ValueError(f"too long for one byte of length: {text}")
    return bytes((len(data),)) + data
