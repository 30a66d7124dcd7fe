"""What the coordinator knows of the pipeline's processes, and which of their replicas serve a request."""

from __future__ import annotations

import itertools
import threading
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from omni_python.proto.messages import Peer, RegisterMessage, Route


@dataclass(frozen=True)
class ReplicaLoad:
    """How many requests one replica of a process works on."""

    process: str
    replica: int
    requests: int


class Registry:
    """The registrations of each replica of each process. `version` grows with every change. Thread-safe.

    There may be several of one replica: Triton may start a model's new instance before it ends the old one. The newest
    one that is not leaving gets what is new; the others end what they have.
    A replica can serve once it has seen the version with which it joined, and the others have too: only then do they
    know where to send to. One that joins or goes does not keep the others from serving.
    A request keeps the replicas that `choose` chose for it, one of each process that it needs, until `release`.
    """

    def __init__(self, epoch: int, stages: Mapping[str, Collection[str]], replicas: Mapping[str, int]) -> None:
        self._epoch = epoch
        self._stages = {process: frozenset(names) for process, names in stages.items()}
        self._replicas = replicas
        self._peers: dict[int, Peer] = {}  # by epoch, in the order in which they came
        self._current: dict[tuple[str, int], Peer] = {}  # by process and replica: those that get what is new
        self._seen: dict[int, int] = {}  # epoch -> newest version that it has seen
        self._retired: set[int] = set()  # epochs that get no new requests
        self._loads: dict[int, int] = {}  # epoch -> requests, of those that have any
        self._turns: dict[int, int] = {}  # epoch -> when it was last chosen
        self._known_ready: dict[str, list[Peer]] = {}  # process -> its replicas that can serve, as far as worked out
        self._clock = itertools.count(1)
        self._lock = threading.Lock()
        self.version = 1

    def register(self, message: RegisterMessage) -> tuple[Peer | None, Peer | None]:
        """Take a registration. Returns (new peer or None where nothing changed, the peer whose place it takes or None).

        Raises `ValueError` for a process, replica or stages that the pipeline does not have.
        """
        if self._stages.get(message.process) != frozenset(message.stages):
            raise ValueError(f"process {message.process} with stages {message.stages} is not of this pipeline")
        if not 0 <= message.replica < self._replicas[message.process]:
            raise ValueError(f"process {message.process} has no replica {message.replica}")
        with self._lock:
            seen = message.view[1] if message.view[0] == self._epoch else 0
            if message.epoch in self._peers:
                if self._seen.get(message.epoch) != seen:
                    self._seen[message.epoch] = seen
                    self._known_ready.clear()
                return None, None
            self.version += 1
            peer = Peer(
                message.process,
                message.stages,
                message.epoch,
                message.pid,
                message.address,
                message.site,
                message.replica,
                self.version,
            )
            before = self._current.get((peer.process, peer.replica))
            self._peers[peer.epoch] = peer
            self._seen[peer.epoch] = seen
            self._appoint(peer)
            return peer, before

    def retire(self, epoch: int) -> None:
        """Choose this process for nothing new; what it has goes on."""
        with self._lock:
            peer = self._peers.get(epoch)
            if peer is not None:
                self._retired.add(epoch)
                self._appoint(peer)

    def remove(self, epoch: int) -> Peer | None:
        """A process is gone."""
        with self._lock:
            peer = self._peers.pop(epoch, None)
            if peer is not None:
                self._seen.pop(epoch, None)
                self._turns.pop(epoch, None)
                self._retired.discard(epoch)
                self._appoint(peer)
                self.version += 1
            return peer

    def is_informed(self, epoch: int) -> bool:
        """Whether a process has seen any version of this registry."""
        return self._seen.get(epoch, 0) > 0

    def peer(self, epoch: int) -> Peer | None:
        return self._peers.get(epoch)

    def current(self, process: str, replica: int) -> Peer | None:
        """Who gets a replica's new requests."""
        return self._current.get((process, replica))

    def peers(self) -> list[Peer]:
        with self._lock:
            return list(self._peers.values())

    def serves(self, process: str) -> bool:
        """Whether a replica of the process takes new requests, or will as soon as all know of it."""
        with self._lock:
            return any(name == process for name, _ in self._current)

    def serves_all(self) -> bool:
        """Whether `serves` holds for every process. Takes no lock: each look at what is shared is a single step."""
        return {process for process, _ in list(self._current)} == self._stages.keys()

    def missing(self, processes: Collection[str]) -> list[str]:
        """Those of `processes` of which no replica is registered."""
        return sorted(process for process in processes if not self.serves(process))

    # -- replicas of a request

    def can_serve(self, processes: Collection[str]) -> bool:
        """Whether `choose` would find a replica of each."""
        with self._lock:
            return all(map(self._ready, processes))

    def choose(self, processes: Collection[str]) -> Route | None:
        """The least loaded replica of each of `processes`, in turns among equals; each counts one request more. None if
        there is one of which no replica can serve."""
        with self._lock:
            return self._choose(processes)

    def release(self, route: Route) -> None:
        """The request of this route is over."""
        with self._lock:
            for epoch in route:
                load = self._loads.pop(epoch, 1) - 1
                if load:
                    self._loads[epoch] = load

    def is_idle(self, epoch: int) -> bool:
        return epoch not in self._loads

    def runs(self, route: Route, stage: str) -> Peer | None:
        """The process of a route that runs a stage; None if one of the route's processes is gone, whichever."""
        found = None
        for epoch in route:
            peer = self._peers.get(epoch)
            if peer is None:
                return None
            if stage in peer.stages:
                found = peer
        return found

    def loads(self) -> list[ReplicaLoad]:
        """Every replica that the pipeline has, also those that are not there now."""
        with self._lock:
            by_replica: Counter[tuple[str, int]] = Counter()
            for peer in self._peers.values():
                by_replica[peer.process, peer.replica] += self._loads.get(peer.epoch, 0)
        return [
            ReplicaLoad(process, replica, by_replica[process, replica])
            for process, count in self._replicas.items()
            for replica in range(count)
        ]

    # -- with the lock held

    def _appoint(self, changed: Peer) -> None:
        """Find who gets what is new of a replica one of whose registrations has changed."""
        self._known_ready.clear()
        key = changed.process, changed.replica
        found = None
        for peer in self._peers.values():
            if (peer.process, peer.replica) == key and peer.epoch not in self._retired:
                found = peer
        if found is None:
            self._current.pop(key, None)
        else:
            self._current[key] = found

    def _ready(self, process: str) -> list[Peer]:
        """Those that can serve."""
        ready = self._known_ready.get(process)
        if ready is None:
            informed = [peer for peer in self._current.values() if self._seen[peer.epoch] >= peer.joined]
            known = min((self._seen[peer.epoch] for peer in informed), default=0)
            # All that joined up to this version know of each other. What has stepped back is in nobody's new route.
            ready = self._known_ready[process] = [
                peer for peer in informed if peer.process == process and peer.joined <= known
            ]
        return ready

    def _choose(self, processes: Collection[str]) -> Route | None:
        epochs = []
        for process in sorted(processes):
            ready = self._known_ready.get(process) or self._ready(process)
            if not ready:
                return None
            epochs.append(ready[0].epoch if len(ready) == 1 else min(ready, key=self._rank).epoch)
        for epoch in epochs:
            self._loads[epoch] = self._loads.get(epoch, 0) + 1
            self._turns[epoch] = next(self._clock)
        return tuple(epochs)

    def _rank(self, peer: Peer) -> tuple[int, int]:
        return self._loads.get(peer.epoch, 0), self._turns.get(peer.epoch, 0)
