"""How a process of a pipeline on several hosts is reached, and reaches others: over TCP, with the pipeline's key."""

from __future__ import annotations

import errno
import ipaddress
import logging
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

import zmq

from omni_python.control.curve import CurveKey
from omni_python.control.framing import MAX_FRAME, check_length
from omni_python.control.handshakes import ZAP_DOMAIN, Handshakes
from omni_python.control.outlet import SEND_TIMEOUT
from omni_python.proto.errors import InvalidArgument, OmniError, Unavailable
from omni_python.proto.messages import ControlMessage, encode_message

BIND_PATIENCE = 120.0
"""Seconds for the host's name to lead here (a new pod's does after a while), and for a predecessor to let go of the
port."""

HIGH_WATER_MARK = 20_000
"""Messages queued to one peer before `RemoteOutlet.send` blocks."""

_RETRY = 0.5
_CONNECT_TIMEOUT = 2000
_RECONNECT, _RECONNECT_MAX = 50, 1000
_HEARTBEAT = 1000
"""All in milliseconds. After a cut the kernel would try a connection at ever longer intervals, for minutes."""

_STOP = "inproc://omni-stop"

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class NetworkPlace:
    """`host` is the process's, by its name in the pipeline; `address` (an IP address or DNS name) and `port` are where
    it listens. A connection that is silent for `silence` seconds is made anew."""

    host: str
    address: str
    port: int
    key: CurveKey
    silence: float

    @property
    def url(self) -> str:
        """Where other hosts connect to."""
        return f"tcp://{f'[{self.address}]' if ':' in self.address else self.address}:{self.port}"


class Network:
    """A process's connections with other hosts, over ZMQ. Close all outlets before this."""

    def __init__(self, place: NetworkPlace) -> None:
        self.place = place
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._handshakes = Handshakes(self._context, place.key)
        self._listening: threading.Thread | None = None

    def listen(self, take: Callable[[bytes], object]) -> None:
        """Listen at the place's address, and nowhere else. `take` is called with each message, encoded, on a thread of
        this.

        Raises `Unavailable` where that cannot be done within `BIND_PATIENCE` seconds.
        """
        listener = self._context.socket(zmq.PULL)
        try:
            self._bind(listener)
        except BaseException:
            listener.close(linger=0)
            raise
        self._listening = threading.Thread(target=_pass_on, args=(listener, take), name="omni-network", daemon=True)
        self._listening.start()

    def outlet(self, url: str, on_broken: Callable[[], object] | None = None) -> RemoteOutlet:
        """The way to a process of another host. `on_broken` is called on another thread when a connection has broken:
        messages may be lost with it. It is made again in any case."""
        key = self.place.key
        outlet = self._context.socket(zmq.PUSH)
        outlet.setsockopt(zmq.SNDHWM, HIGH_WATER_MARK)
        outlet.setsockopt(zmq.SNDTIMEO, int(SEND_TIMEOUT * 1000))
        outlet.curve_publickey, outlet.curve_secretkey, outlet.curve_serverkey = key.public, key.secret, key.public
        outlet.setsockopt(zmq.CONNECT_TIMEOUT, _CONNECT_TIMEOUT)
        outlet.setsockopt(zmq.RECONNECT_IVL, _RECONNECT)
        outlet.setsockopt(zmq.RECONNECT_IVL_MAX, _RECONNECT_MAX)
        self._keep_alive(outlet)
        self._handshakes.watch(outlet, url, on_broken)
        outlet.connect(url)
        return RemoteOutlet(outlet, url)

    def close(self) -> None:
        if self._listening is not None:
            with self._context.socket(zmq.PUSH) as stop:
                stop.connect(_STOP)
                stop.send(b"")
                self._listening.join()
        self._handshakes.stop()
        self._context.term()

    def _bind(self, listener: zmq.Socket[bytes]) -> None:
        key = self.place.key
        listener.setsockopt(zmq.MAXMSGSIZE, MAX_FRAME)  # libzmq drops the connection that sends a longer one
        listener.setsockopt(zmq.RCVHWM, HIGH_WATER_MARK)
        listener.bind(_STOP)
        listener.curve_server = True
        listener.curve_secretkey = key.secret
        listener.zap_domain = ZAP_DOMAIN
        self._keep_alive(listener)
        self._handshakes.watch(listener, self.place.url)
        end = time.monotonic() + BIND_PATIENCE
        while (error := self._try_to_bind(listener)) is not None:
            if time.monotonic() > end:
                raise Unavailable(
                    f"process cannot listen at {self.place.url}, its place on host {self.place.host!r}: {error}"
                )
            time.sleep(_RETRY)

    def _keep_alive(self, connected: zmq.Socket[bytes]) -> None:
        connected.setsockopt(zmq.IPV6, 1)
        connected.setsockopt(zmq.HEARTBEAT_IVL, _HEARTBEAT)
        connected.setsockopt(zmq.HEARTBEAT_TIMEOUT, int(self.place.silence * 1000))

    def _try_to_bind(self, listener: zmq.Socket[bytes]) -> str | None:
        """What was in the way. Raises `OmniError` for an address that this machine does not have."""
        try:
            found = own_address(self.place.address)
            listener.bind(f"tcp://{f'[{found}]' if ':' in found else found}:{self.place.port}")
        except OSError as error:  # of the name; libzmq's are its own
            return str(error)
        except zmq.ZMQError as error:
            if error.errno == errno.EADDRNOTAVAIL and _is_literal(self.place.address):
                raise OmniError(
                    f"{self.place.address} is no address of this machine; the models of host {self.place.host!r} "
                    "run on it (hosts in the pipeline)"
                ) from None
            return str(error)
        return None


class RemoteOutlet:
    """An `Outlet` to a process of another host. What waits when the connection breaks is sent once it is back."""

    def __init__(self, connected: zmq.Socket[bytes], url: str) -> None:
        self._socket = connected
        self._url = url
        self._lock = threading.Lock()

    def send(self, message: ControlMessage) -> None:
        frame = encode_message(message)
        check_length(len(frame))  # the receiver would end the connection, with what else waits for it
        try:
            with self._lock:
                self._socket.send(frame)
        except zmq.Again:
            raise Unavailable(f"the peer at {self._url} has stopped reading") from None
        except zmq.ZMQError as error:
            raise Unavailable(f"the peer at {self._url} cannot be reached: {error}") from error

    def try_send(self, message: ControlMessage) -> bool:
        if not self._lock.acquire(blocking=False):
            return False
        try:
            frame = encode_message(message)
            check_length(len(frame))
            self._socket.send(frame, zmq.NOBLOCK)
        except (zmq.ZMQError, InvalidArgument):
            return False
        finally:
            self._lock.release()
        return True

    def await_room(self) -> None:
        """`send` itself waits, once much is queued."""

    def close(self, linger: float = 0.0) -> None:
        with self._lock:
            self._socket.close(linger=int(linger * 1000))


def _pass_on(listener: zmq.Socket[bytes], take: Callable[[bytes], object]) -> None:
    while frame := listener.recv():
        try:
            take(frame)
        except OmniError as error:
            log.warning("a message of another host is lost: %s", error)
    listener.close(linger=0)


def own_address(address: str) -> str:
    """The IP address behind a host's configured one. Raises `OSError` where its name is not known, or is one of this
    machine's names for itself that leads to the loopback interface, where no other host would reach it."""
    found = str(socket.getaddrinfo(address, None, type=socket.SOCK_STREAM)[0][4][0])
    if address not in ("localhost", found) and ipaddress.ip_address(found).is_loopback:
        raise OSError(f"{address} leads to {found} here (/etc/hosts?), which no other host reaches")
    return found


def _is_literal(address: str) -> bool:
    try:
        ipaddress.ip_address(address)
    except ValueError:
        return False
    return True
