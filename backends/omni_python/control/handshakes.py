"""Who may connect from another host: only those who prove the pipeline's key. Others are refused and logged.

And what becomes of connections: with one that breaks, messages are lost.
"""

from __future__ import annotations

import hmac
import itertools
import logging
import threading
import time
from collections.abc import Callable
from typing import Any

import zmq
from zmq.utils import z85
from zmq.utils.monitor import parse_monitor_message

from omni_python.control.curve import CurveKey
from omni_python.control.safely import safely

ZAP_DOMAIN = b"omni"

LOG_PERIOD = 10.0
"""Seconds before the same refusal is logged again: who is refused tries again at once."""

_MOST_LOGGED = 1000
"""Refusals remembered: who has a network of addresses is refused under each of them."""

_ZAP_ADDRESS = "inproc://zeromq.zap.01"  # ZAP is RFC 27
_ZAP_VERSION = b"1.0"
_FAILED = zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL | zmq.EVENT_HANDSHAKE_FAILED_AUTH
_EVENTS = _FAILED | zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED | zmq.EVENT_MONITOR_STOPPED
_ids = itertools.count(1)

log = logging.getLogger(__name__)


class Handshakes:
    """Answers libzmq's questions about keys, for all sockets of a context, and hears of handshakes that failed.

    One thread; `watch` may be called on any.
    """

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], key: CurveKey) -> None:
        self._context = context
        self._key = key
        self._zap = context.socket(zmq.REP)
        self._zap.bind(_ZAP_ADDRESS)
        self._orders_address = f"inproc://omni-handshakes-{next(_ids)}"
        self._orders = context.socket(zmq.PULL)
        self._orders.bind(self._orders_address)
        self._monitors: dict[zmq.Socket[bytes], bytes] = {}  # the address of each
        self._watched: dict[bytes, tuple[str, Callable[[], object] | None]] = {}  # by the monitor's address
        self._connected: set[zmq.Socket[bytes]] = set()
        self._logged: dict[str, float] = {}
        self._is_stopped = False
        self._thread = threading.Thread(target=self._run, name="omni-handshakes", daemon=True)
        self._thread.start()

    def watch(self, watched: zmq.Socket[bytes], what: str, on_broken: Callable[[], object] | None = None) -> None:
        """Log handshakes of a socket that fail; `what` is its address. It must not be in use on another thread.

        `on_broken` is called on the thread of this when its connection, that of a socket with one, has broken.
        """
        address = f"inproc://omni-monitor-{next(_ids)}"
        watched.monitor(address, _EVENTS)
        self._watched[address.encode()] = what, on_broken
        self._order(address.encode())

    def stop(self) -> None:
        self._order(b"")
        self._thread.join()

    def _order(self, address: bytes) -> None:
        with self._context.socket(zmq.PUSH) as orders:
            orders.connect(self._orders_address)
            orders.send(address)

    def _run(self) -> None:
        poller = zmq.Poller()
        poller.register(self._zap, zmq.POLLIN)
        poller.register(self._orders, zmq.POLLIN)
        while not self._is_stopped:
            for ready, _ in poller.poll():
                safely("what was to be seen to of a handshake", self._see_to, ready, poller)
        for own in (self._zap, self._orders, *self._monitors):
            own.close(linger=0)

    def _see_to(self, ready: Any, poller: zmq.Poller) -> None:
        if ready is self._zap:
            self._decide(self._zap.recv_multipart())
        elif ready is self._orders:
            self._take_order(poller)
        elif not self._hear(ready):
            poller.unregister(ready)
            del self._watched[self._monitors.pop(ready)]
            self._connected.discard(ready)
            ready.close(linger=0)

    def _take_order(self, poller: zmq.Poller) -> None:
        address = self._orders.recv()
        if not address:
            self._is_stopped = True
            return
        monitor = self._context.socket(zmq.PAIR)
        monitor.connect(address.decode())
        self._monitors[monitor] = address
        poller.register(monitor, zmq.POLLIN)

    def _decide(self, request: list[bytes]) -> None:
        """A question of ZAP: version, id, domain, address, identity, mechanism, credentials. Without an answer to it
        there would be no next one."""
        known = False
        try:
            version, _, _, address, _, mechanism, *credentials = request
            known = self._is_known(version, address, mechanism, credentials)
        finally:
            status = (b"200", b"OK") if known else (b"400", b"unknown key")
            self._zap.send_multipart([_ZAP_VERSION, request[1], *status, b"", b""])

    def _is_known(self, version: bytes, address: bytes, mechanism: bytes, credentials: list[bytes]) -> bool:
        known = (
            version == _ZAP_VERSION
            and mechanism == b"CURVE"
            and len(credentials) == 1
            and hmac.compare_digest(z85.encode(credentials[0]), self._key.public)
        )
        if not known:
            peer = address.decode(errors="replace").removeprefix("::ffff:")
            self._log(f"refused a connection from {peer}, which has another key")
        return known

    def _hear(self, monitor: Any) -> bool:
        """An event of a watched socket; False if it was the last."""
        event = parse_monitor_message(monitor.recv_multipart())
        what, on_broken = self._watched[self._monitors[monitor]]
        if event["event"] & _FAILED:
            self._log(f"refused at {what}: the other side did not prove the pipeline's key (endpoints.key_file)")
        elif event["event"] == zmq.EVENT_HANDSHAKE_SUCCEEDED:
            self._connected.add(monitor)
        elif event["event"] == zmq.EVENT_DISCONNECTED and monitor in self._connected:
            self._connected.discard(monitor)
            if on_broken is not None:
                on_broken()
        return event["event"] != zmq.EVENT_MONITOR_STOPPED

    def _log(self, text: str) -> None:
        now = time.monotonic()
        if now - self._logged.get(text, -LOG_PERIOD) >= LOG_PERIOD:
            if len(self._logged) >= _MOST_LOGGED:
                self._logged.clear()
            self._logged[text] = now
            log.warning("%s", text)
