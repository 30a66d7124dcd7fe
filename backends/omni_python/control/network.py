"""How a process of a pipeline on several hosts is reached, and reaches others: over TCP, with the pipeline's key."""

from __future__ import annotations

import errno
import ipaddress
import logging
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass

import zmq

from omni_python.control.curve import CurveKey
from omni_python.control.handshakes import ZAP_DOMAIN, Handshakes
from omni_python.proto.errors import OmniError, Unavailable

BIND_PATIENCE = 120.0
"""Seconds for the host's name to lead here (a new pod's does after a while), and for a predecessor to let go of the
port."""

_RETRY = 0.5
_CONNECT_TIMEOUT = 2000
_RECONNECT, _RECONNECT_MAX = 50, 1000
_HEARTBEAT = 1000
"""All in milliseconds. After a cut the kernel would try a connection at ever longer intervals, for minutes."""

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
    """The connections of one ZMQ context with other hosts."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], place: NetworkPlace) -> None:
        self.place = place
        self._handshakes = Handshakes(context, place.key)

    def listen(self, listener: zmq.Socket[bytes]) -> None:
        """Let a socket listen at the place's address, and nowhere else. Addresses that it is bound to already stay as
        they are: libzmq applies options to what is bound after them.

        Raises `Unavailable` where that cannot be done within `BIND_PATIENCE` seconds.
        """
        key = self.place.key
        listener.curve_server = True
        listener.curve_secretkey = key.secret
        listener.zap_domain = ZAP_DOMAIN
        self._keep_alive(listener)
        self._handshakes.watch(listener, self.place.url)
        end = time.monotonic() + BIND_PATIENCE
        while (error := self._bind(listener)) is not None:
            if time.monotonic() > end:
                raise Unavailable(
                    f"process cannot listen at {self.place.url}, its place on host {self.place.host!r}: {error}"
                )
            time.sleep(_RETRY)

    def reach(self, outlet: zmq.Socket[bytes], url: str, on_broken: Callable[[], object] | None = None) -> None:
        """Let a socket connect to a process of another host. `on_broken` is called on another thread when a connection
        has broken: messages may be lost with it. It is made again in any case."""
        key = self.place.key
        outlet.curve_publickey, outlet.curve_secretkey, outlet.curve_serverkey = key.public, key.secret, key.public
        outlet.setsockopt(zmq.CONNECT_TIMEOUT, _CONNECT_TIMEOUT)
        outlet.setsockopt(zmq.RECONNECT_IVL, _RECONNECT)
        outlet.setsockopt(zmq.RECONNECT_IVL_MAX, _RECONNECT_MAX)
        self._keep_alive(outlet)
        self._handshakes.watch(outlet, url, on_broken)
        outlet.connect(url)

    def close(self) -> None:
        self._handshakes.stop()

    def _keep_alive(self, connected: zmq.Socket[bytes]) -> None:
        connected.setsockopt(zmq.IPV6, 1)
        connected.setsockopt(zmq.HEARTBEAT_IVL, _HEARTBEAT)
        connected.setsockopt(zmq.HEARTBEAT_TIMEOUT, int(self.place.silence * 1000))

    def _bind(self, listener: zmq.Socket[bytes]) -> str | None:
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
