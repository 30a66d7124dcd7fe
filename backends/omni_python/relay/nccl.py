"""torch.distributed point to point: `isend` and `irecv` between two processes at a time. Memory of the host; that of
GPUs, over NCCL itself: `nccl_cuda`.

Each pair of processes that exchange payloads has a group of its own, made at its first payload. So one dead process
ends its own pairs and no others, and a restarted one gets new groups. Payloads on the host go over gloo, whose tags
keep transfers apart; the lower epoch (or the lower configured rank) is rank 0 of a pair and keeps the store where both
meet.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np

from omni_python.proto.refs import NcclRef
from omni_python.relay.base import (
    CreditFn,
    Relay,
    RelayOperation,
    RelaySettings,
    RelayUnavailable,
    TransferFailed,
)
from omni_python.relay.meetings import HOST, TIMEOUT, Meeting, MeetingPlace
from omni_python.relay.reads import Region
from omni_python.relay.slots import Beside, Slot, Slots

_MAX_TAG = (1 << 31) - 1


class NcclRelay(Relay[NcclRef]):
    name = "nccl"

    def __init__(self, settings: RelaySettings, epoch: int, credit: CreditFn) -> None:
        try:
            import torch.distributed as dist
        except ImportError as error:
            raise RelayUnavailable(f"relay_backend nccl needs torch: pip install torch ({error})") from None
        if not (dist.is_available() and dist.is_gloo_available()):
            raise RelayUnavailable(
                "relay_backend nccl needs a torch with torch.distributed and gloo: pip install torch"
            )
        self._dist: Any = dist  # whose types leave out what it exports
        self._epoch = epoch
        self._rank = settings.rank or 0
        self._credit = credit
        self._region = Region(settings.pool_bytes)
        super().__init__(Slots(settings.pool_bytes, beside=Beside(Region, lambda region: None)))
        self._place = MeetingPlace(self._rank)
        self._peers: dict[int, Meeting] = {}
        self._groups: dict[int, Any] = {}
        self._forming: dict[int, threading.Lock] = {}
        self._lock = threading.Lock()
        self._outboxes: dict[int, queue.SimpleQueue[tuple[int, np.ndarray] | None]] = {}
        self._declined: queue.SimpleQueue[tuple[int, NcclRef] | None] = queue.SimpleQueue()
        threading.Thread(target=self._drain, name="omni-nccl-drain", daemon=True).start()

    def announcement(self) -> bytes:
        return self._place.announcement

    def introduce(self, epoch: int, announcement: bytes) -> None:
        self._peers[epoch] = Meeting.decode(announcement)

    # -- sending

    def _room(self, nbytes: int, request_id: str, timeout: float) -> tuple[Slot, np.ndarray]:
        slot = self.slots.take(nbytes, request_id, timeout)
        region = slot.extra or self._region
        return slot, region.memory[slot.offset : slot.offset + slot.length]

    def _offer(self, slot: Slot, memory: np.ndarray, readers: Sequence[int]) -> RelayOperation[NcclRef]:
        self.slots.commit(slot, readers)
        for reader in readers:
            self._outbox(reader).put((slot.generation, memory))
        ref = NcclRef(slot.generation, memory.nbytes)
        return RelayOperation(ref, self.slots)

    def _outbox(self, reader: int) -> queue.SimpleQueue[tuple[int, np.ndarray] | None]:
        with self._lock:
            outbox = self._outboxes.get(reader)
            if outbox is None:
                outbox = self._outboxes[reader] = queue.SimpleQueue()
                threading.Thread(target=self._send, args=(reader, outbox), name="omni-nccl-send", daemon=True).start()
        return outbox

    def _send(self, reader: int, outbox: queue.SimpleQueue[tuple[int, np.ndarray] | None]) -> None:
        """One thread a reader, since the meeting may take a while. No send waits for the one before it: the reader may
        ask for them in another order. What cannot be sent is left: a dead reader's slots come back by `forget`."""
        import torch

        under_way: dict[int, Any] = {}
        while (item := outbox.get()) is not None:
            generation, memory = item
            if not memory.nbytes:
                continue
            try:
                group, rank = self._group(reader)
                work = group.send([torch.from_numpy(memory)], 1 - rank, generation & _MAX_TAG)
            except (RuntimeError, TransferFailed):
                continue
            finally:
                del item, memory
            under_way = {sent: work for sent, work in under_way.items() if not self.slots.wait_free(sent, 0)}
            under_way[generation] = work

    # -- reading

    def get_view(self, sender: int, ref: NcclRef) -> np.ndarray:
        memory = np.empty(ref.nbytes, np.uint8)
        self.get(sender, ref, memory)
        memory.flags.writeable = False
        return memory

    def get(self, sender: int, ref: NcclRef, dest: np.ndarray, request_id: str = "") -> RelayOperation[NcclRef]:
        import torch

        if ref.nbytes:
            try:
                group, rank = self._group(sender)
                work = group.recv([torch.from_numpy(dest[: ref.nbytes])], 1 - rank, ref.generation & _MAX_TAG)
                work.wait(TIMEOUT)
            except RuntimeError as error:
                reason = str(error).partition("\n")[0]
                raise TransferFailed(f"{ref.nbytes} bytes did not come over torch.distributed: {reason}") from error
        self._credit(sender, self.name, ref.generation)
        return RelayOperation(ref)

    def decline(self, sender: int, ref: NcclRef) -> None:
        self._declined.put((sender, ref))

    def _drain(self) -> None:
        """What is declined has to be received all the same: its sender is in the middle of sending it."""
        while (declined := self._declined.get()) is not None:
            sender, ref = declined
            try:
                self.get(sender, ref, np.empty(ref.nbytes, np.uint8))
            except TransferFailed:
                self._credit(sender, self.name, ref.generation)

    # -- lifetimes

    def forget(self, epoch: int) -> None:
        super().forget(epoch)
        with self._lock:
            self._peers.pop(epoch, None)
            self._groups.pop(epoch, None)
            self._forming.pop(epoch, None)
            outbox = self._outboxes.pop(epoch, None)
        if outbox is not None:
            outbox.put(None)

    def close(self) -> None:
        self.slots.close()
        with self._lock:
            for outbox in self._outboxes.values():
                outbox.put(None)
            self._outboxes.clear()
            self._groups.clear()
        self._declined.put(None)

    def _group(self, peer: int) -> tuple[Any, int]:
        """The group shared with a peer, and this process's rank in it. Blocks until the peer comes to it too."""
        dist = self._dist
        with self._lock:
            forming = self._forming.setdefault(peer, threading.Lock())
        with forming:
            group = self._groups.get(peer)
            meeting = self._peers.get(peer)
            if meeting is None:
                raise TransferFailed("the peer has not been introduced, or is gone")
            rank = int((self._rank, self._epoch) > (meeting.rank, peer))
            if group is None:
                try:
                    store = meeting.store() if rank else self._place.store
                    low, high = sorted((self._epoch, peer))
                    options = dist.ProcessGroupGloo._Options()
                    options._devices = [dist.ProcessGroupGloo.create_device(hostname=HOST)]
                    options._timeout = TIMEOUT
                    group = dist.ProcessGroupGloo(dist.PrefixStore(f"{low:x}-{high:x}", store), rank, 2, options)
                except RuntimeError as error:
                    raise TransferFailed(f"the peer does not come to its group: {error}") from error
                self._groups[peer] = group
            return group, rank
