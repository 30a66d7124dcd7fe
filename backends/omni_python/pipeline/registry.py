"""What the coordinator knows of the pipeline's processes, and which of their replicas serve a request."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

from omni_python.proto.messages import Peer, RegisterMessage, Route


@dataclass(frozen=True)
class ReplicaLoad:
    """How many requests one replica of a process works on."""

    process: str
    replica: int
    requests: int


class Registry:
    """The newest registration of each replica of each process. `version` grows with every change. Thread-safe.

    A replica can serve once it has seen the version with which it joined, and the others have too: only then do they
    know where to send to. One that joins or goes does not keep the others from serving.
    A request keeps the replicas that `choose` chose for it, one of each process that it needs, until `release`.
    """

    def __init__(self, epoch: int, stages: Mapping[str, Collection[str]], replicas: Mapping[str, int]) -> None:
        self._epoch = epoch
        self._stages = {process: frozenset(names) for process, names in stages.items()}
        self._replicas = replicas
        self._peers: dict[tuple[str, int], Peer] = {}  # by process and replica
        self._by_epoch: dict[int, Peer] = {}
        self._seen: dict[int, int] = {}  # epoch -> newest version that it has seen
        self._joined: dict[int, int] = {}  # epoch -> the version in which it was first
        self._retired: set[int] = set()  # epochs that get no new requests
        self._loads: dict[int, int] = {}  # epoch -> requests, of those that have any
        self._turns: dict[int, int] = {}  # epoch -> when it was last chosen
        self._known_ready: dict[str, list[Peer]] = {}  # process -> its replicas that can serve, as far as worked out
        self._clock = itertools.count(1)
        self._lock = threading.Lock()
        self.version = 1

    def register(self, message: RegisterMessage) -> tuple[Peer | None, Peer | None]:
        """Take a registration. Returns (new peer or None where nothing changed, the peer that it replaces or None).

        Raises `ValueError` for a process, replica or stages that the pipeline does not have.
        """
        if self._stages.get(message.process) != frozenset(message.stages):
            raise ValueError(f"process {message.process} with stages {message.stages} is not of this pipeline")
        if not 0 <= message.replica < self._replicas[message.process]:
            raise ValueError(f"process {message.process} has no replica {message.replica}")
        key = message.process, message.replica
        with self._lock:
            before = self._peers.get(key)
            seen = message.view[1] if message.view[0] == self._epoch else 0
            if before is not None and before.epoch == message.epoch:
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
            if before is not None:
                self._forget(before.epoch)
            self._peers[key] = self._by_epoch[peer.epoch] = peer
            self._joined[peer.epoch], self._seen[peer.epoch] = self.version, seen
            self._known_ready.clear()
            return peer, before

    def retire(self, epoch: int) -> None:
        """Choose this process for nothing new; what it has goes on."""
        with self._lock:
            self._retired.add(epoch)
            self._known_ready.clear()

    def remove(self, epoch: int) -> Peer | None:
        """A process is gone."""
        with self._lock:
            for key, peer in self._peers.items():
                if peer.epoch == epoch:
                    del self._peers[key]
                    self._forget(epoch)
                    self.version += 1
                    return peer
        return None

    def is_informed(self, epoch: int) -> bool:
        """Whether a process has seen any version of this registry."""
        return self._seen.get(epoch, 0) > 0

    def peer(self, epoch: int) -> Peer | None:
        return self._by_epoch.get(epoch)

    def peers(self) -> list[Peer]:
        with self._lock:
            return list(self._peers.values())

    def serves(self, process: str) -> bool:
        """Whether a replica of the process takes new requests, or will as soon as all know of it."""
        with self._lock:
            return any(peer.epoch not in self._retired for peer in self._of(process))

    def serves_all(self) -> bool:
        """Whether `serves` holds for every process. Takes no lock: each look at what is shared is a single step."""
        peers = list(self._peers.values())
        return {peer.process for peer in peers if peer.epoch not in self._retired} == self._stages.keys()

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
            peer = self._by_epoch.get(epoch)
            if peer is None:
                return None
            if stage in peer.stages:
                found = peer
        return found

    def loads(self) -> list[ReplicaLoad]:
        """Every replica that the pipeline has, also those that are not there now."""
        with self._lock:
            by_replica = {key: self._loads.get(peer.epoch, 0) for key, peer in self._peers.items()}
        return [
            ReplicaLoad(process, replica, by_replica.get((process, replica), 0))
            for process, count in self._replicas.items()
            for replica in range(count)
        ]

    # -- with the lock held

    def _of(self, process: str) -> Iterator[Peer]:
        return (peer for (name, _), peer in self._peers.items() if name == process)

    def _ready(self, process: str) -> list[Peer]:
        """Those that can serve."""
        ready = self._known_ready.get(process)
        if ready is None:
            informed = [seen for epoch, seen in self._seen.items() if seen >= self._joined[epoch]]
            known = min(informed, default=0)  # all that joined up to this version know of each other
            ready = self._known_ready[process] = [
                peer
                for peer in self._of(process)
                if peer.epoch not in self._retired and self._joined[peer.epoch] <= min(known, self._seen[peer.epoch])
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

    def _forget(self, epoch: int) -> None:
        self._known_ready.clear()
        self._by_epoch.pop(epoch, None)
        self._seen.pop(epoch, None)
        self._joined.pop(epoch, None)
        self._turns.pop(epoch, None)
        self._retired.discard(epoch)
