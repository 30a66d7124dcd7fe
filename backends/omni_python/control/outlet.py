"""What a process sends to another one on: over a Unix socket within the host; `network` has the other kind."""

from __future__ import annotations

import logging
import select
import socket
import threading
from collections import deque
from contextlib import suppress
from itertools import islice
from typing import Protocol

from omni_python.control.framing import framed
from omni_python.proto.errors import Unavailable
from omni_python.proto.messages import ControlMessage, encode_message

SEND_TIMEOUT = 5.0
"""Seconds after which a peer that takes nothing counts as gone."""

BACKLOG = 64 << 20
"""Bytes that wait for one peer, beside those in the kernel, before `send` blocks."""

_KERNEL_BUFFER = 1 << 18
"""Bytes asked for, some 60 chunks of 4 KB, behind which the first chunk of another request has to wait. With half of
that processes wake each other so often that a chunk costs 5 % more CPU, with a quarter 30 %."""

PATIENCE = 0.05
"""Seconds at most that a peer which does not read holds up a thread in `await_room`, once until it has read again."""

_AT_ONCE = 64
"""Messages that go to the kernel together once they have had to wait."""

log = logging.getLogger(__name__)


class Outlet(Protocol):
    """The way to one peer; any thread may send. Messages of one thread arrive in their order, or not at all."""

    def send(self, message: ControlMessage) -> None:
        """Queue a message. Raises `Unavailable` if the peer took none for `SEND_TIMEOUT` seconds, this is closed, or
        no file descriptor or thread is left for it; `InvalidArgument` for a message that is too long (`MAX_FRAME`)."""

    def try_send(self, message: ControlMessage) -> bool:
        """Queue a message unless that takes waiting, or cannot be done; whether it was queued."""

    def await_room(self) -> None:
        """Let the peer catch up: for threads that make messages faster than it reads them. Not for those that receive,
        of which two could wait for each other."""

    def close(self, linger: float = 0.0) -> None:
        """What the peer has not taken within `linger` seconds is lost."""


class LocalOutlet:
    """An `Outlet` to the `Inbox` at `address`, a socket's path.

    What is sent while nobody listens there, or to a process that has died since, is lost without an error: whoever
    depends on a process watches it (`deaths`), and says better what has become of it.
    """

    def __init__(self, address: str) -> None:
        self._address = address
        self._connection: socket.socket | None = None
        self._backlog: deque[bytes | memoryview] = deque()
        self._waiting = 0  # bytes in the backlog
        self._closed = False
        self._is_stalled = False  # whether the peer has tried somebody's patience, and not read since
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)  # the backlog, or whether this is closed
        self._flusher: threading.Thread | None = None

    def send(self, message: ControlMessage) -> None:
        self._send(framed(encode_message(message)))

    def forward(self, message: bytes) -> None:
        """The same with a message that is encoded already."""
        self._send(framed(message))

    def try_send(self, message: ControlMessage) -> bool:
        if not self._lock.acquire(blocking=False):
            return False
        try:
            if self._closed or self._backlog:
                return False
            self._write(framed(encode_message(message)))
            return True
        except Unavailable:
            return False
        finally:
            self._lock.release()

    def await_room(self) -> None:
        if not self._backlog or self._is_stalled:
            return
        with self._lock:
            if not self._changed.wait_for(lambda: not self._backlog or self._closed, PATIENCE):
                self._is_stalled = True

    def close(self, linger: float = 0.0) -> None:
        with self._lock:
            self._changed.wait_for(lambda: not self._backlog, linger)
            self._closed = True
            self._drop_backlog()
            connection, flusher = self._connection, self._flusher
            if connection is not None:
                with suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)  # wakes the flusher, where closing would not
        if flusher is not None:
            flusher.join()
        if connection is not None:
            connection.close()

    def _send(self, frame: bytes) -> None:
        with self._lock:
            if self._waiting > BACKLOG and not self._changed.wait_for(self._has_room, SEND_TIMEOUT):
                raise Unavailable(f"the process at {self._address} has stopped reading")
            if self._closed:
                raise Unavailable(f"the process at {self._address} cannot be reached: the way to it is closed")
            if self._backlog:
                self._put_off(frame)
            else:
                self._write(frame)

    def _has_room(self) -> bool:
        return self._waiting <= BACKLOG or self._closed

    # -- with the lock held

    def _write(self, frame: bytes) -> None:
        for connection in (self._connection, None):  # whoever listened has gone: another one may be there
            connection = connection or self._connect()
            if connection is None:
                return
            try:
                sent = connection.send(frame, socket.MSG_NOSIGNAL)
            except BlockingIOError:
                sent = 0
            except OSError:
                self._drop_connection()
                continue
            if sent < len(frame):
                try:
                    self._put_off(memoryview(frame)[sent:])
                except Unavailable:
                    if sent:  # the peer would take the next message for the rest of this one
                        self._drop_connection()
                    raise
            return

    def _connect(self) -> socket.socket | None:
        try:
            connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        except OSError as error:
            raise Unavailable(f"the process at {self._address} cannot be reached: {error}") from error
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _KERNEL_BUFFER)
        connection.settimeout(SEND_TIMEOUT)
        try:
            connection.connect(self._address)
        except OSError as error:
            connection.close()
            log.debug("nobody listens at %s: %s", self._address, error)
            return None
        connection.setblocking(False)
        self._connection = connection
        return connection

    def _drop_connection(self) -> None:
        """It is broken."""
        self._drop_backlog()
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _drop_backlog(self) -> None:
        self._backlog.clear()
        self._waiting = 0
        self._is_stalled = False
        self._changed.notify_all()

    def _put_off(self, frame: bytes | memoryview) -> None:
        if self._flusher is None:
            self._flusher = self._started_flusher()
        self._backlog.append(frame)
        self._waiting += len(frame)
        self._changed.notify_all()

    def _started_flusher(self) -> threading.Thread:
        flusher = threading.Thread(target=self._flush, name="omni-outlet", daemon=True)
        try:
            flusher.start()
        except RuntimeError as error:
            raise Unavailable(f"the process at {self._address} cannot be waited for: {error}") from error
        return flusher

    # -- on the flusher's thread

    def _flush(self) -> None:
        """Write the backlog whenever the peer has read."""
        while True:
            with self._lock:
                self._changed.wait_for(lambda: self._backlog or self._closed)
                connection = self._connection
            if self._closed or connection is None:
                return
            poll = select.poll()
            poll.register(connection, select.POLLOUT)
            poll.poll()  # nobody else closes the connection while there is a backlog
            with self._lock:
                self._write_backlog(connection)

    def _write_backlog(self, connection: socket.socket) -> None:
        if not self._backlog:
            return
        try:
            sent = connection.sendmsg(list(islice(self._backlog, _AT_ONCE)), (), socket.MSG_NOSIGNAL)
        except BlockingIOError:
            return
        except OSError:
            self._drop_connection()
            return
        self._waiting -= sent
        while sent:
            first = self._backlog.popleft()
            if sent < len(first):
                self._backlog.appendleft(memoryview(first)[sent:])
            sent -= min(sent, len(first))
        self._is_stalled = self._is_stalled and bool(self._backlog)
        self._changed.notify_all()
