"""One process's presence on both planes: its socket, its peers, its relays, and the credits between them."""

from __future__ import annotations

import logging
import os
import queue
import threading
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path

import msgspec

from omni_python.control.directory import socket_address
from omni_python.control.inbox import Inbox
from omni_python.control.network import Network, NetworkPlace
from omni_python.control.outlet import LocalOutlet, Outlet
from omni_python.pipeline.credits import Credits
from omni_python.pipeline.direct import DirectCalls
from omni_python.proto.errors import OmniError, Unavailable
from omni_python.proto.messages import (
    CompleteMessage,
    ControlMessage,
    CreditMessage,
    DataReadyMessage,
    Site,
    StreamMessage,
    SubmitMessage,
    new_epoch,
)
from omni_python.relay.base import RelaySettings
from omni_python.relay.carrier import Carrier
from omni_python.relay.put_off import handle
from omni_python.relay.ways import host_identity

DataMessage = SubmitMessage | DataReadyMessage | StreamMessage | CompleteMessage
_DATA_MESSAGES = (SubmitMessage, DataReadyMessage, StreamMessage, CompleteMessage)

log = logging.getLogger(__name__)


class Endpoint:
    """Sends and receives messages; `carrier` packs and unpacks their payloads. Peers are known by epoch.

    `handle` gets every message but credits; those of one peer that carry data, in the order in which they were sent. It
    is called on the receiving thread, or on one that may wait for bytes to come; an abort overtakes what waits there.
    With a `place` it also hears, and reaches, peers on other hosts; `on_broken` is called with the epoch of one whose
    connection has broken, on another thread: messages may be lost.
    """

    def __init__(
        self,
        directory: Path,
        handle: Callable[[ControlMessage], None],
        relay: RelaySettings,
        address: str | None = None,
        host: str | None = None,
        place: NetworkPlace | None = None,
        on_broken: Callable[[int], object] = lambda epoch: None,
    ) -> None:
        self.epoch = new_epoch()
        self.pid = os.getpid()
        self._directory = directory
        self._handle = handle
        self._on_broken = on_broken
        self._credits = Credits(self._send_credits)
        self._is_stopped = False
        self._outlets: dict[int, Outlet] = {}
        self._lock = threading.Lock()
        self._transfers: dict[int, Transfers] = {}  # by peer: one that is cut off does not hold up the others
        self._behind: Counter[int] = Counter()  # messages of each peer that wait for bytes, or behind one that does
        if place is not None and host is None:
            host = f"{host_identity()}/{place.host}"
        with ExitStack() as undo:
            self._inbox = Inbox(address or socket_address(directory, socket_name(self.epoch)), self._on_message)
            undo.callback(self._inbox.stop)
            self.direct = DirectCalls(self._inbox.replace_thread)
            self.carrier = Carrier(relay, self.epoch, self._credits.note, host)
            undo.callback(self.carrier.close)
            if place is not None:
                self.carrier.site = msgspec.structs.replace(self.carrier.site, name=place.host, address=place.url)
            self._from_network = LocalOutlet(self._inbox.address)
            self._network = None if place is None else self._listen(place)
            undo.pop_all()

    @property
    def address(self) -> str:
        return self._inbox.address

    def start(self) -> None:
        self._credits.start()
        self._inbox.start()

    def stop_receiving(self) -> None:
        """Handle nothing more; what is being handled is done when this returns."""
        if self._is_stopped:
            return
        self._is_stopped = True
        self.direct.close()
        self._inbox.stop()
        for transfers in self._transfers.values():
            transfers.stop()

    def stop(self) -> None:
        """Close everything; messages that peers have not taken within 0.2 s are lost."""
        self.stop_receiving()
        self.carrier.close()
        self._credits.stop()
        with self._lock:
            outlets = list(self._outlets.values())
            self._outlets.clear()
        for outlet in outlets:
            outlet.close(linger=0.2)
        self._from_network.close()
        if self._network is not None:
            self._network.close()

    def _listen(self, place: NetworkPlace) -> Network:
        """What other hosts send goes through the inbox, too: one thread handles all messages."""
        network = Network(place)
        try:
            network.listen(self._from_network.forward)
        except BaseException:
            network.close()
            raise
        return network

    # -- peers

    def connect(self, epoch: int, address: str, site: Site | None = None) -> None:
        """A peer; payloads can be exchanged with it once its `site` is known."""
        if site is not None:
            self.carrier.introduce(epoch, site)
            if self.is_remote(site):
                address = site.address
        with self._lock:
            if epoch not in self._outlets:
                self._outlets[epoch] = self._outlet(epoch, address)

    def _outlet(self, epoch: int, address: str) -> Outlet:
        if not address.startswith("tcp://"):
            return LocalOutlet(address)
        if self._network is None:
            raise OmniError(f"{address} is on another host, and this process has no key for it (endpoints.key_file)")
        return self._network.outlet(address, partial(self._on_broken, epoch))

    def is_remote(self, site: Site) -> bool:
        """Whether a peer is on another host of the pipeline."""
        return bool(site.address) and site.host != self.carrier.site.host

    def reconnect(self, epoch: int, address: str) -> None:
        """Drop what is queued for a peer, which does not take it, and try anew."""
        with self._lock:
            outlet = self._outlets.pop(epoch, None)
        if outlet is not None:  # else the last attempt failed
            outlet.close()  # which waits for whoever is sending: nobody else need wait for that
        self.connect(epoch, address)

    def forget(self, epoch: int, linger: float = 0.0) -> None:
        """A peer is dead, or is to end: what it held comes back, its memory is let go, and what is queued for it is
        dropped, after `linger` seconds."""
        self.carrier.forget(epoch)  # first: what still comes of it then waits for no bytes
        with self._lock:
            outlet = self._outlets.pop(epoch, None)
            transfers = self._transfers.pop(epoch, None)
        if outlet is not None:
            outlet.close(linger)
        if transfers is not None:
            transfers.end()

    def remove_socket(self, epoch: int) -> None:
        """Remove the file that a dead process of this host has left."""
        with suppress(OSError):
            (self._directory / socket_name(epoch)).unlink()

    def send(self, epoch: int, message: ControlMessage) -> None:
        """Raises `Unavailable` when the peer is unknown or does not read."""
        outlet = self._outlets.get(epoch)
        if outlet is None:
            raise Unavailable("the receiving process is gone")
        outlet.send(message)

    def await_room(self, epoch: int) -> None:
        """Let a peer on this host read what waits for it in this process, but see `Outlet.await_room`."""
        if (outlet := self._outlets.get(epoch)) is not None:
            outlet.await_room()

    # -- threads

    def _on_message(self, message: ControlMessage) -> None:
        if type(message) is CreditMessage:  # these classes' own metaclass makes isinstance several times as dear
            for generation in message.generations:
                self.carrier.credit(message.relay, generation, message.epoch)
        elif not (self.carrier.travelling and isinstance(message, _DATA_MESSAGES) and self._must_wait(message)):
            handle(self._handle, message)

    def _must_wait(self, message: DataMessage) -> bool:
        """Whether a message waits on another thread from now on: its bytes have yet to come, or it would overtake one
        of the same peer whose bytes have. Those of a dead peer never come, and nothing waits for them."""
        epoch = message.epoch
        if not (self._behind.get(epoch) or self.carrier.travels(message.payload)):
            return False
        with self._lock:
            if epoch not in self._outlets:
                return False
            self._behind[epoch] += 1
            if epoch not in self._transfers:
                self._transfers[epoch] = Transfers(self._handle_next)
            self._transfers[epoch].put(message)
            return True

    def _handle_next(self, message: DataMessage) -> None:
        """Nothing is put off here: `direct` would take this thread for the receiving one."""
        try:
            self._handle(message)
        except Exception:
            log.exception("could not handle %s", type(message).__name__)
        with self._lock:
            self._behind[message.epoch] -= 1
            if not self._behind[message.epoch]:
                del self._behind[message.epoch]

    def _send_credits(self, epoch: int, relay: str, generations: list[int], wait: bool) -> bool:
        """Whether they need not be sent once more."""
        outlet = self._outlets.get(epoch)
        if outlet is None:
            return True  # a dead peer's credits die with it: payloads come only from peers that were introduced
        message = CreditMessage(self.epoch, relay, generations)
        if not wait:
            return outlet.try_send(message)
        try:
            outlet.send(message)
        except OmniError as error:
            log.warning("credits wait: %s", error)
            return False
        return True


class Transfers:
    """A thread on which messages of one peer wait for their bytes, one after the other."""

    def __init__(self, handle: Callable[[DataMessage], None]) -> None:
        self._handle = handle
        self._messages: queue.SimpleQueue[DataMessage | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="omni-transfer", daemon=True)
        self._thread.start()

    def put(self, message: DataMessage) -> None:
        self._messages.put(message)

    def end(self) -> None:
        """Let the thread end once it has handled what is waiting."""
        self._messages.put(None)

    def stop(self) -> None:
        """The same, and wait for it."""
        self.end()
        self._thread.join()

    def _run(self) -> None:
        while self._next():
            pass

    def _next(self) -> bool:
        """A method of its own, so that no payload is held while waiting for the next."""
        message = self._messages.get()
        if message is None:
            return False
        self._handle(message)
        return True


def socket_name(epoch: int) -> str:
    """Of a process's socket in the server's directory."""
    return f"{epoch:016x}"
