"""Where a process of this host hears all others: a Unix socket in the server's directory, and the thread that reads it.

No ZMQ within a host: its I/O threads make three wakings of each message, and cost three times the CPU of one.
"""

from __future__ import annotations

import logging
import os
import select
import socket
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress

import msgspec

from omni_python.control.framing import Deframer
from omni_python.proto.errors import InvalidArgument, OmniError
from omni_python.proto.messages import ControlMessage, decode_message

_READ = 64 << 10
"""Bytes taken of one connection before the others have their turn."""

_PENDING = 1024
"""Connections that may wait to be accepted."""

_BREATH = 0.05
"""Seconds until a connection is accepted that could not be."""

log = logging.getLogger(__name__)


class Inbox:
    """Listens at `address`, the path of a socket, which only this user can connect to. Raises `OmniError` where it
    cannot.

    `handle` is called with each message, on one thread; those of one sender in their order. Bytes that are no message
    are logged and dropped; so is an exception of `handle`, which must not take the process's only ear with it.
    """

    def __init__(self, address: str, handle: Callable[[ControlMessage], None]) -> None:
        self.address = address
        self._handle = handle
        self._listener = _listen(address)
        self._file = os.lstat(address)
        self._senders: dict[int, _Sender] = {}  # by file descriptor
        self._stop = os.eventfd(0)
        self._poll = select.epoll()
        self._poll.register(self._listener, select.EPOLLIN)
        self._poll.register(self._stop, select.EPOLLIN)
        self._received: deque[bytes] = deque()  # messages that are not handled yet
        self._thread = threading.Thread(target=self._run, name="omni-inbox", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Stop the thread, where it was started, close the socket and remove its file."""
        os.eventfd_write(self._stop, 1)
        if self._thread.ident is not None:
            self._thread.join()
        self._poll.close()
        os.close(self._stop)
        with suppress(OSError):
            if os.path.samestat(os.lstat(self.address), self._file):  # else a successor's
                os.unlink(self.address)
        self._listener.close()
        for sender in self._senders.values():
            sender.connection.close()

    def replace_thread(self) -> None:
        """The thread is held up in `handle`: another one goes on, and that one ends when it comes back. Where no other
        can be started, that one goes on when it comes back."""
        held_up = self._thread
        self._thread = threading.Thread(target=self._run, name="omni-inbox", daemon=True)  # first: two never receive
        try:
            self._thread.start()
        except BaseException:
            self._thread = held_up
            raise

    def _run(self) -> None:
        me = threading.current_thread()
        while self._thread is me:
            if self._received:
                self._take(self._received.popleft())
            elif not self._receive():
                break

    def _take(self, frame: bytes) -> None:
        try:
            message = decode_message(frame)
        except msgspec.MsgspecError as error:
            log.warning("dropped %d bytes that are no control message: %s", len(frame), error)
            return
        try:
            self._handle(message)
        except Exception:
            log.exception("could not handle %s", type(message).__name__)

    def _receive(self) -> bool:
        """Wait for more, and read it; False when this was stopped."""
        for ready, _ in self._poll.poll():
            if (sender := self._senders.get(ready)) is not None:
                self._read(sender)
            elif ready == self._stop:
                return False
            else:
                self._accept()
        return True

    def _accept(self) -> None:
        try:
            connection, _ = self._listener.accept()
            connection.setblocking(False)
            self._poll.register(connection, select.EPOLLIN)
        except OSError as error:  # it is gone again; or there are no file descriptors left, and will be none at once
            log.warning("could not accept a connection: %s", error)
            time.sleep(_BREATH)
            return
        self._senders[connection.fileno()] = _Sender(connection)

    def _read(self, sender: _Sender) -> None:
        try:
            data = sender.connection.recv(_READ)
            if data:
                sender.deframer.feed(data, self._received.append)
                return
        except BlockingIOError:
            return
        except InvalidArgument as error:
            log.warning("closed a connection: %s", error)
        except OSError as error:
            log.info("a connection broke: %s", error)
        self._poll.unregister(sender.connection)
        del self._senders[sender.connection.fileno()]
        sender.connection.close()


def _listen(address: str) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        with suppress(FileNotFoundError):
            os.unlink(address)  # a killed predecessor's
        listener.bind(address)
        os.chmod(address, 0o600)
        listener.listen(_PENDING)
    except OSError as error:
        listener.close()
        raise OmniError(f"cannot listen at {address}: {error.strerror or error}") from None
    listener.setblocking(False)
    return listener


class _Sender:
    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self.deframer = Deframer()
