"""What the coordinator knows of the pipeline's processes."""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterable, Mapping

from omni_python.proto.messages import Peer, RegisterMessage


class Registry:
    """The newest registration of each process. `version` grows with every change. Thread-safe.

    The pipeline is complete when every process is registered and has seen the newest version: only then does each
    know where to send to.
    """

    def __init__(self, epoch: int, stages_by_process: Mapping[str, Iterable[str]]) -> None:
        self._epoch = epoch
        self._expected = {process: frozenset(stages) for process, stages in stages_by_process.items()}
        self._peers: dict[str, Peer] = {}
        self._seen: dict[str, tuple[int, int]] = {}  # process -> newest view that it has seen
        self._changed = threading.Condition()
        self.version = 1

    def register(self, message: RegisterMessage) -> tuple[Peer | None, Peer | None]:
        """Take a registration. Returns (new peer or None where nothing changed, the peer that it replaces or None).

        Raises `ValueError` for a process or stages that the pipeline does not have.
        """
        if self._expected.get(message.process) != frozenset(message.stages):
            raise ValueError(f"process {message.process} with stages {message.stages} is not of this pipeline")
        with self._changed:
            before = self._peers.get(message.process)
            self._seen[message.process] = message.view
            if before is not None and before.epoch == message.epoch:
                self._changed.notify_all()
                return None, None
            peer = Peer(message.process, message.stages, message.epoch, message.pid, message.address, message.site)
            self._peers[message.process] = peer
            self.version += 1
            return peer, before

    def remove(self, epoch: int) -> Peer | None:
        """A process died."""
        with self._changed:
            for process, peer in self._peers.items():
                if peer.epoch == epoch:
                    del self._peers[process]
                    self.version += 1
                    self._changed.notify_all()
                    return peer
        return None

    def peer(self, epoch: int) -> Peer | None:
        return next((peer for peer in self.peers() if peer.epoch == epoch), None)

    def peers(self) -> list[Peer]:
        with self._changed:
            return list(self._peers.values())

    def missing(self, processes: Collection[str]) -> list[str]:
        """Those of `processes` that are not registered."""
        return sorted(set(processes) - self._peers.keys())

    def wait_complete(self, processes: Collection[str], timeout: float) -> bool:
        """Whether all of `processes` are there and know of each other, waiting up to `timeout` seconds for the last."""
        with self._changed:
            return self._changed.wait_for(lambda: self._is_complete(processes), timeout)

    def _is_complete(self, processes: Collection[str]) -> bool:
        newest = (self._epoch, self.version)
        return not self.missing(processes) and all(self._seen[process] == newest for process in processes)

    def peer_of(self, stage: str) -> Peer | None:
        """The process that runs a stage."""
        return next((peer for peer in self.peers() if stage in peer.stages), None)
