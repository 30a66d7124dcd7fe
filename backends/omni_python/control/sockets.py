"""Thin wrappers over ZMQ: one socket to receive on, one to each peer. Blocking calls, no asyncio: a hop then
costs about 25 us instead of 85 us."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable
from contextlib import suppress

import msgspec
import zmq

from omni_python.control.network import Network
from omni_python.proto.errors import OmniError, Unavailable
from omni_python.proto.messages import ControlMessage, decode_message, encode_message

MAX_FRAME = 64 << 20
"""Bytes; larger payloads never travel inside a message."""

HIGH_WATER_MARK = 20_000
"""Messages queued to one peer before `Outlet.send` blocks."""

SEND_TIMEOUT = 5.0
"""Seconds after which a peer that takes nothing counts as gone."""

log = logging.getLogger(__name__)


class Inbox:
    """A bound PULL socket and the thread that reads it. With a `network` it listens for other hosts, too.

    `handle` is called with each message, on that thread. Bytes that are no message are logged and dropped; so is
    an exception of `handle`, which must not take the process's only ear with it.
    """

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        address: str,
        handle: Callable[[ControlMessage], None],
        network: Network | None = None,
    ) -> None:
        self.address = address
        self._context = context
        self._handle = handle
        self._socket = context.socket(zmq.PULL)
        self._socket.setsockopt(zmq.MAXMSGSIZE, MAX_FRAME)  # libzmq drops the connection that sends a longer one
        self._socket.setsockopt(zmq.RCVHWM, HIGH_WATER_MARK)
        self._socket.bind(address)
        os.chmod(address.removeprefix("ipc://"), 0o600)
        if network is not None:
            network.listen(self._socket)
        self._thread = threading.Thread(target=self._run, name="omni-inbox", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Stop the thread, close the socket and remove its file."""
        with self._context.socket(zmq.PUSH) as wake:
            wake.connect(self.address)
            wake.send(b"")
            self._thread.join()
        self._socket.close(linger=0)
        with suppress(OSError):
            os.unlink(self.address.removeprefix("ipc://"))

    def replace_thread(self) -> None:
        """The thread is held up in `handle`: another one goes on, and that one ends when it comes back."""
        self._thread = threading.Thread(target=self._run, name="omni-inbox", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        me = threading.current_thread()
        while self._thread is me and (frame := self._socket.recv()):
            try:
                message = decode_message(frame)
            except msgspec.MsgspecError as error:
                log.warning("dropped %d bytes that are no control message: %s", len(frame), error)
                continue
            try:
                self._handle(message)
            except Exception:
                log.exception("could not handle %s", type(message).__name__)


class Outlet:
    """A PUSH socket to one peer; any thread may send. Peers on other hosts are reached over a `network` alone."""

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        address: str,
        network: Network | None = None,
        on_broken: Callable[[], object] | None = None,
    ) -> None:
        self._lock = threading.Lock()
        self._socket = context.socket(zmq.PUSH)
        self._socket.setsockopt(zmq.SNDHWM, HIGH_WATER_MARK)
        self._socket.setsockopt(zmq.SNDTIMEO, int(SEND_TIMEOUT * 1000))
        if address.startswith("ipc://"):
            self._socket.setsockopt(zmq.RECONNECT_IVL, 20)
            self._socket.connect(address)
        elif network is not None:
            network.reach(self._socket, address, on_broken)
        else:
            self._socket.close(linger=0)
            raise OmniError(f"{address} is on another host, and this process has no key for it (endpoints.key_file)")
        self._address = address
        # Around pyzmq's own `send`, a layer for arguments that are not used here: a third of what sending costs.
        self._queue: Callable[..., None] = super(zmq.Socket, self._socket).send

    def send(self, message: ControlMessage) -> None:
        """Queue a message; raises `Unavailable` if the peer took none for `SEND_TIMEOUT` seconds or is closed."""
        frame = encode_message(message)
        try:
            with self._lock:
                self._queue(frame)
        except zmq.Again:
            raise Unavailable(f"the peer at {self._address} has stopped reading") from None
        except zmq.ZMQError as error:
            raise Unavailable(f"the peer at {self._address} cannot be reached: {error}") from error

    def try_send(self, message: ControlMessage) -> bool:
        """Queue a message unless that takes waiting, or cannot be done; whether it was queued."""
        if not self._lock.acquire(blocking=False):
            return False
        try:
            self._queue(encode_message(message), zmq.NOBLOCK)
        except zmq.ZMQError:
            return False
        finally:
            self._lock.release()
        return True

    def close(self, linger: float = 0.0) -> None:
        with self._lock:
            self._socket.close(linger=int(linger * 1000))
