"""A stage process's tie to the pipeline: how it stays known to the coordinator, and whom it knows of the others."""

from __future__ import annotations

import logging
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable
from pathlib import Path

from omni_python.control.deaths import DeathWatch
from omni_python.control.directory import socket_address
from omni_python.pipeline.endpoint import Endpoint
from omni_python.pipeline.members import HELD_UP
from omni_python.pipeline.place import Place
from omni_python.proto.errors import OmniError, Unavailable
from omni_python.proto.messages import (
    BrokenLinkMessage,
    BrokenMessage,
    LeaveMessage,
    Peer,
    PeersMessage,
    RegisterMessage,
    Route,
)

FIRST_REGISTRATION = 0.05
"""Seconds between registrations until the coordinator has answered."""

FIRST_REMOTE_REGISTRATION = 0.25
"""The same, where the coordinator is on another host: what it does not take is queued here."""

HEARTBEAT = 1.0
"""Seconds between registrations afterwards."""

COORDINATOR = 0
"""Stands for the epoch of whichever coordinator listens at the well-known address."""

PAUSE = 0.25
"""Seconds of rest after a registration that failed unexpectedly."""

_KEEPER = 1
"""Stands for the epoch of whichever keeper listens there, on a host without the coordinator."""

log = logging.getLogger(__name__)


def coordinator_address(directory: Path, pipeline: str) -> str:
    """Where a pipeline's coordinator listens; the one address that is known beforehand."""
    return socket_address(directory, f"{pipeline}.coordinator")


class Membership:
    """Registers again and again, on a thread of its own. `drop_requests()` is called when whatever runs here belongs to
    a coordinator that is dead, was replaced, or cannot be reached.

    `update` and `released` are called on the receiving thread, `link_broken` on any.
    """

    def __init__(
        self,
        process: str,
        replica: int,
        stages: Collection[str],
        endpoint: Endpoint,
        address: str,
        place: Place | None,
        drop_requests: Callable[[], None],
    ) -> None:
        self._process = process
        self._replica = replica
        self._stages = list(stages)
        self._endpoint = endpoint
        self._drop_requests = drop_requests
        self._far_coordinator = "" if place is None else place.coordinator  # its URL, where it is on another host
        self._silence = 0.0 if place is None or place.network is None else place.network.silence
        self._heard = time.monotonic()  # when a coordinator on another host was heard last
        self._is_cut = False
        endpoint.connect(COORDINATOR, self._far_coordinator or address)
        self._overseers = [COORDINATOR]
        if self._far_coordinator:
            endpoint.connect(_KEEPER, address)
            self._overseers.append(_KEEPER)
        self._view = (0, 0)  # the coordinator's epoch and the version of its newest PeersMessage
        self._peers: dict[str, list[Peer]] = {}  # by stage
        self._former: dict[tuple[str, int], Peer] = {}  # by process and replica: those that the last coordinator knew
        self._dead: set[int] = set()  # epochs of processes that were replaced
        self._is_leaving = False
        self._released = threading.Event()
        self._deaths = DeathWatch()
        self._thread = threading.Thread(target=self._stay_registered, name="omni-register", daemon=True)

    @property
    def coordinator(self) -> int:
        """The epoch of the coordinator whose requests run here; 0 for none."""
        return self._view[0]

    @property
    def is_registered(self) -> bool:
        """Whether a coordinator knows of this process, and may send it new requests."""
        return self._view[0] != 0 and not self._is_leaving

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._deaths.close()
        self._thread.join()

    def leave(self, timeout: float) -> None:
        """Get nothing new, and wait until the coordinator's running requests need this process no more, at most
        `timeout` seconds."""
        self._is_leaving = True
        if not self.tell_overseers(LeaveMessage(self._endpoint.epoch)):
            return
        end = time.monotonic() + timeout
        while self._view[0] and not self._released.wait(0.05) and time.monotonic() < end:
            pass

    def released(self) -> None:
        """The coordinator needs this process no more."""
        self._released.set()

    def tell_overseers(self, message: RegisterMessage | LeaveMessage | BrokenMessage) -> bool:
        """Tell the coordinator, and the keeper where there is one; False if one of them cannot be told."""
        told = True
        for overseer in self._overseers:
            try:
                self._endpoint.send(overseer, message)
            except OmniError as error:
                log.warning("a %s is lost: %s", type(message).__name__, error)
                told = False
        return told

    # -- the others

    def peer(self, stage: str, route: Route) -> Peer:
        """The process of the route that runs a stage; the only one, for requests that came without a route. Raises
        `Unavailable`."""
        peers = self._peers.get(stage, [])
        for peer in peers:
            if peer.epoch in route or (not route and len(peers) == 1):
                return peer
        raise Unavailable(f"stage {stage} is not there: {'its process is gone' if peers else 'it is not registered'}")

    def is_dead(self, epoch: int) -> bool:
        """Whether a process was replaced."""
        return epoch in self._dead

    def names(self) -> dict[int, str]:
        """The process behind each epoch that is known; the coordinator's is "orchestrator"."""
        names = {peer.epoch: peer.process for peer in _all(list(self._peers.values()))}
        names[self._view[0]] = "orchestrator"
        return names

    def update(self, message: PeersMessage) -> None:
        """The coordinator tells who there is."""
        self._heard = time.monotonic()
        if message.epoch != self._view[0]:
            self._follow(message)
        elif message.version <= self._view[1]:
            return
        else:
            self._forget_returned(message.peers)
        self._forget_gone(message.peers)
        peers = defaultdict(list)
        for peer in message.peers:
            self._dead.discard(peer.epoch)
            if peer.process != self._process:
                self._endpoint.connect(peer.epoch, peer.address, peer.site)
            for stage in peer.stages:
                peers[stage].append(peer)
        self._peers = dict(peers)
        self._view = (message.epoch, message.version)
        self._deaths.wake()  # tell the coordinator: it submits nothing before everybody has seen the newest view

    def _follow(self, message: PeersMessage) -> None:
        """Another coordinator."""
        self._drop_requests()
        if not self._far_coordinator:
            self._deaths.watch(message.epoch, message.pid)
        elif self._view[0]:
            self._endpoint.forget(self._view[0])
        self._endpoint.connect(message.epoch, message.address, message.site)
        # A new coordinator hears of the processes one by one: those that it does not name yet need not be dead.
        self._former |= {(peer.process, peer.replica): peer for peer in _all(self._peers.values())}
        self._peers = {}

    def _forget_gone(self, peers: list[Peer]) -> None:
        epochs = {peer.epoch for peer in peers}
        gone = [peer for peer in _all(self._peers.values()) if peer.epoch not in epochs]
        for peer in peers:
            former = self._former.pop((peer.process, peer.replica), peer)
            if former.epoch not in epochs:  # there may be two of one replica for a while
                gone.append(former)
        for peer in gone:
            if peer.epoch not in self._dead:
                self._dead.add(peer.epoch)
                self._endpoint.forget(peer.epoch)

    def _forget_returned(self, peers: list[Peer]) -> None:
        """Peers that were cut off and have come back: they know nothing more of this process, not even its slots."""
        joined = {peer.epoch: peer.joined for peer in _all(self._peers.values())}
        for peer in peers:
            if joined.get(peer.epoch, peer.joined) != peer.joined and peer.epoch != self._endpoint.epoch:
                self._endpoint.forget(peer.epoch)

    def link_broken(self, epoch: int) -> None:
        """The connection with a process on another host has broken."""
        if epoch in (COORDINATOR, self._view[0]):
            self._is_cut = True
            self._deaths.wake()
            return
        try:
            self._endpoint.send(COORDINATOR, BrokenLinkMessage(self._endpoint.epoch, epoch))
        except OmniError as error:
            log.warning("the coordinator does not know of a broken connection: %s", error)

    # -- registration thread

    def _stay_registered(self) -> None:
        """Registering again and again is also the heartbeat, and heals whatever message was lost. No failure ends it:
        the process would be killed for its silence."""
        before = time.monotonic()
        while not self._deaths.closed:
            now = time.monotonic()
            if now - before > HELD_UP:  # this process was, and what was sent to it may wait to be read
                self._heard += now - before
            before = now
            try:
                self._stay_in_touch(now)
            except Exception:
                log.exception("the process could not see to its registration")
                time.sleep(PAUSE)

    def _stay_in_touch(self, now: float) -> None:
        """Register, and wait until it is time to do so again."""
        if self._is_cut or (self._far_coordinator and now - self._heard > self._silence):
            self._lose_touch(now - self._heard)
        self._register()
        first = FIRST_REMOTE_REGISTRATION if self._far_coordinator else FIRST_REGISTRATION
        for epoch in self._deaths.wait(HEARTBEAT if self._view[0] else first):
            if epoch == self._view[0]:
                log.warning("the coordinator died; its requests are dropped")
                self._view = (0, 0)
                self._drop_requests()
            self._endpoint.forget(epoch)

    def _register(self) -> None:
        message = RegisterMessage(
            self._endpoint.epoch,
            self._process,
            self._stages,
            self._endpoint.pid,
            self._endpoint.address,
            self._view,
            self._endpoint.carrier.site,
            self._replica,
        )
        self.tell_overseers(message)

    def _lose_touch(self, silence: float) -> None:
        """A coordinator on another host is silent, or the connection has broken: it is dead, or has given up for lost
        what is here. All other hosts have been told to forget this process, or will be, and it forgets them."""
        self._is_cut = False
        if self._view[0]:
            log.warning("cut off from the coordinator, unheard for %.0f s; its requests are dropped", silence)
            coordinator, self._view = self._view[0], (0, 0)
            self._drop_requests()
            far = {peer.epoch for peer in _all(self._peers.values()) if self._endpoint.is_remote(peer.site)}
            for epoch in (coordinator, *far):
                self._endpoint.forget(epoch)
            self._peers = {
                stage: [peer for peer in peers if peer.epoch not in far] for stage, peers in self._peers.items()
            }
        self._heard = time.monotonic()
        self._endpoint.reconnect(COORDINATOR, self._far_coordinator)


def _all(peers: Iterable[list[Peer]]) -> list[Peer]:
    """Of all stages; those with several stages are there several times."""
    return [peer for of_stage in peers for peer in of_stage]
