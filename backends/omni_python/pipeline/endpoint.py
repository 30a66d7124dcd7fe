"""One process's presence on both planes: its socket, its peers, its relay pool, and the credits between them."""

from __future__ import annotations

import logging
import os
import queue
import threading
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

import numpy as np
import zmq

from omni_python.control.directory import socket_address
from omni_python.control.sockets import Inbox, Outlet
from omni_python.proto.codec import EncodedPayload, PayloadDecoder
from omni_python.proto.errors import OmniError, Unavailable
from omni_python.proto.messages import ControlMessage, CreditMessage, Envelope, new_epoch
from omni_python.proto.payload import Payload
from omni_python.relay.shm import ShmPool, ShmReader

INLINE_LIMIT = 16 * 1024
"""Bytes of tensors up to which a payload rides in its message: below it a slot costs more than the copy."""

PUT_TIMEOUT = 30.0
"""Seconds that a payload waits for a relay slot before its request fails."""

log = logging.getLogger(__name__)


class Endpoint:
    """Sends and receives messages and payloads. Peers are known by epoch.

    `handle` gets every message but credits, on the receiving thread.
    """

    def __init__(
        self, directory: Path, handle: Callable[[ControlMessage], None], pool_bytes: int, address: str | None = None
    ) -> None:
        self.epoch = new_epoch()
        self.pid = os.getpid()
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._handle = handle
        self._inbox = Inbox(self._context, address or socket_address(directory, f"{self.epoch:016x}"), self._on_message)
        self._outlets: dict[int, Outlet] = {}
        self._lock = threading.Lock()
        self.pool = ShmPool(pool_bytes)
        self._reader = ShmReader(lambda *slot: self._credits.put(slot))
        self._decoders = threading.local()
        self._credits: queue.SimpleQueue[tuple[int, int, int, int] | None] = queue.SimpleQueue()
        self._credit_thread = threading.Thread(target=self._send_credits, name="omni-credits", daemon=True)

    @property
    def address(self) -> str:
        return self._inbox.address

    def start(self) -> None:
        self._credit_thread.start()
        self._inbox.start()

    def stop(self) -> None:
        """Close everything; messages that peers have not taken within 0.2 s are lost."""
        self._inbox.stop()
        self.pool.close()
        self._credits.put(None)
        self._credit_thread.join()
        with self._lock:
            for outlet in self._outlets.values():
                outlet.close(linger=0.2)
            self._outlets.clear()
        self._context.term()

    # -- peers

    def connect(self, epoch: int, address: str) -> None:
        with self._lock:
            if epoch not in self._outlets:
                self._outlets[epoch] = Outlet(self._context, address)

    def forget(self, epoch: int) -> None:
        """A peer is dead: what is queued for it is dropped, and its memory let go."""
        with self._lock:
            outlet = self._outlets.pop(epoch, None)
        if outlet is not None:
            outlet.close()
        self._reader.forget(epoch)

    def send(self, epoch: int, message: ControlMessage) -> None:
        """Raises `Unavailable` when the peer is unknown or does not read."""
        outlet = self._outlets.get(epoch)
        if outlet is None:
            raise Unavailable("the receiving process is gone")
        outlet.send(message)

    # -- payloads

    def pack(self, payload: Payload) -> Envelope:
        """Encode; large tensors go to a relay slot, for which this may wait. Raises `CodecError`, `Unavailable`."""
        encoded = EncodedPayload(payload)
        if encoded.nbytes <= INLINE_LIMIT:
            return Envelope(encoded.type, encoded.body, encoded.inline())
        return Envelope(encoded.type, encoded.body, ref=self.pool.put(encoded, PUT_TIMEOUT))

    def unpack(self, epoch: int, envelope: Envelope) -> Payload:
        """The payload; its tensors may be views of the sender's slot, which is credited when they are gone."""
        decoder = getattr(self._decoders, "decoder", None)
        if decoder is None:
            decoder = self._decoders.decoder = PayloadDecoder()
        if envelope.ref is None:
            buffer = np.frombuffer(envelope.inline, np.uint8)
        else:
            buffer = self._reader.view(epoch, envelope.ref)
        payload: Payload = decoder.decode(envelope.type, envelope.body, buffer)
        return payload

    def decline(self, epoch: int, envelope: Envelope | None) -> None:
        """Give a payload's slot back unread."""
        if envelope is not None and envelope.ref is not None:
            self._reader.decline(epoch, envelope.ref)

    def take_back(self, envelope: Envelope | None) -> None:
        """A payload that could not be sent: its slot is free again."""
        if envelope is not None and envelope.ref is not None:
            self.pool.release(envelope.ref.fd, envelope.ref.offset, envelope.ref.generation)

    # -- threads

    def _on_message(self, message: ControlMessage) -> None:
        if isinstance(message, CreditMessage):
            for slot in message.slots:
                self.pool.release(*slot)
        else:
            self._handle(message)

    def _send_credits(self) -> None:
        """Credits come from wherever the last view of a slot dies, even inside the garbage collector: they are queued
        there, and sent from here, all that are waiting for one peer in one message."""
        waiting: dict[int, list[tuple[int, int, int]]] = defaultdict(list)
        while (credit := self._credits.get()) is not None:
            waiting[credit[0]].append(credit[1:])
            while not self._credits.empty():
                more = self._credits.get()
                if more is None:
                    return
                waiting[more[0]].append(more[1:])
            for epoch in list(waiting):
                if epoch not in self._outlets:
                    continue  # not introduced yet; a dead peer's credits are dropped with it
                try:
                    self.send(epoch, CreditMessage(self.epoch, waiting.pop(epoch)))
                except OmniError as error:
                    log.warning("credits lost: %s", error)
