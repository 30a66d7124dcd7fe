"""NCCL from GPU to GPU: `isend` and `irecv` of torch.distributed in a group of two for each sender and reader.

NCCL has no tags: what one side sends first, the other must receive first. So the reader decides. When it comes to a
payload it asks its sender for it (a credit with the generation negated) and posts the receive; the sender sends in the
order in which it is asked. So no kernel of the sender's waits for a reader that is slow or never comes, payloads that
are declined are not sent, and aborted requests leave nothing behind. Each direction has a group of its own, since a
send and a receive of one group wait for each other on its stream.

A dead peer leaves a kernel that waits for ever; `forget` aborts the group, which ends it.
"""

from __future__ import annotations

import logging
import os
import queue
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from omni_python.proto.refs import NcclCudaRef
from omni_python.relay.base import (
    CreditFn,
    RelaySettings,
    RelayUnavailable,
    TransferFailed,
)
from omni_python.relay.device import DeviceRelay, Gpu
from omni_python.relay.meetings import TIMEOUT, Meeting, MeetingPlace
from omni_python.relay.slots import Slot

POLL = 20e-6
"""Seconds between looks whether a payload has come."""

_WATCHDOG = {
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": "0",
    "TORCH_NCCL_ENABLE_MONITORING": "0",
    "TORCH_NCCL_DUMP_ON_TIMEOUT": "0",
}
"""torch's watchdog of a group would end this process because another one died."""

_environment = threading.Lock()

log = logging.getLogger(__name__)


class _Group:
    """A group of the sender (rank 0) and its reader (rank 1)."""

    def __init__(self, gpu: Gpu, store: Any, sender: int, reader: int, rank: int) -> None:
        import torch.distributed

        dist: Any = torch.distributed  # whose types leave out what it exports
        options = dist.ProcessGroupNCCL.Options()
        options._timeout = TIMEOUT
        options.group_name = f"omni-{sender:x}-{reader:x}"
        options.global_ranks_in_group = [0, 1]
        with gpu.current(), _no_watchdog():
            store = dist.PrefixStore(f"{sender:x}-{reader:x}", store)
            self._group: Any = dist.ProcessGroupNCCL(store, rank, 2, options)
        self.over = False

    def send(self, data: Any) -> None:
        self._group.send([data], 1, 0)

    def receive(self, data: Any) -> Any:
        """Waits for the sender at the first use. Returns the work; it is done when `is_completed()`."""
        return self._group.recv([data], 0, 0)

    def abort(self) -> None:
        """End what is under way, within some seconds; on a thread of its own, since NCCL may take its time."""
        self.over = True
        thread = threading.Thread(target=self._group.abort, name="omni-nccl-abort", daemon=True)
        thread.start()
        thread.join(5)


class NcclCudaRelay(DeviceRelay[NcclCudaRef]):
    name = "nccl_cuda"

    def __init__(self, settings: RelaySettings, epoch: int, credit: CreditFn) -> None:
        gpu = Gpu(self.name, settings.gpu)
        import torch.distributed as dist

        if not (dist.is_available() and dist.is_nccl_available()):
            raise RelayUnavailable("relay nccl_cuda needs a torch with torch.distributed and NCCL")
        self._memory = gpu.torch.empty(settings.pool_bytes, dtype=gpu.torch.uint8, device=gpu.device)
        super().__init__(gpu, self._memory.data_ptr(), settings.pool_bytes)
        self._epoch = epoch
        self._credit = credit
        self._place = MeetingPlace(gpu=self.gpu.uuid)
        self._peers: dict[int, Meeting] = {}
        self._offered: dict[int, tuple[Any, Any]] = {}  # generation -> its part of the pool, an event: written
        self._lock = threading.Lock()
        self._asked: dict[int, queue.SimpleQueue[int | None]] = {}  # by reader
        self._to: dict[int, _Group] = {}
        self._from: dict[int, _Group] = {}
        self._turns: dict[int, threading.Lock] = {}  # by sender

    def announcement(self) -> bytes:
        return self._place.announcement

    def introduce(self, epoch: int, announcement: bytes) -> None:
        self._peers[epoch] = Meeting.decode(announcement)

    def reaches(self, reader: int) -> bool:
        """NCCL joins no two processes on one GPU."""
        meeting = self._peers.get(reader)
        return meeting is not None and meeting.gpu not in ("", self.gpu.uuid)

    # -- sending

    def _written(self, slot: Slot, nbytes: int) -> NcclCudaRef:
        written = self.gpu.torch.cuda.Event()
        written.record()
        slot.on_free = partial(self._withdraw, slot.generation)
        self._offered[slot.generation] = self._memory[slot.offset : slot.offset + nbytes], written
        return NcclCudaRef(slot.generation, nbytes)

    def _withdraw(self, generation: int) -> None:
        self._offered.pop(generation, None)

    def credit(self, generation: int, reader: int) -> bool:
        if generation >= 0:
            return super().credit(generation, reader)
        with self._lock:
            asked = self._asked.get(reader)
            if asked is None:
                asked = self._asked[reader] = queue.SimpleQueue()
                threading.Thread(target=self._send, args=(reader, asked), name="omni-nccl-send", daemon=True).start()
        asked.put(-generation)
        return True

    def _send(self, reader: int, asked: queue.SimpleQueue[int | None]) -> None:
        """One thread a reader, since the meeting may take a while. What cannot be sent is left to the reader's
        time-out; a dead reader's slots come back by `forget`."""
        while (generation := asked.get()) is not None:
            offered = self._offered.get(generation)
            if offered is None:
                continue
            data, written = offered
            try:
                with self.gpu.current():
                    group = self._group(self._to, self._place.store, self._epoch, reader, 0)
                    self.gpu.torch.cuda.current_stream().wait_event(written)
                    group.send(data)
            except (RuntimeError, TransferFailed) as error:
                log.warning("%d bytes could not be sent over NCCL: %s", data.numel(), error)

    # -- reading

    def get_view(self, sender: int, ref: NcclCudaRef) -> Any:
        try:
            with self.gpu.current():
                group, data, work = self._receive(sender, ref)
            end = time.monotonic() + TIMEOUT.total_seconds()
            while not work.is_completed():
                if group.over:
                    break
                if time.monotonic() > end:
                    group.abort()  # what came later would come for this payload
                    break
                time.sleep(POLL)
        except RuntimeError as error:
            reason = str(error).partition("\n")[0]
            raise TransferFailed(f"{ref.nbytes} bytes did not come over NCCL: {reason}") from error
        if group.over:
            raise TransferFailed(f"{ref.nbytes} bytes did not come over NCCL: is the sender still alive?")
        self._credit(sender, self.name, ref.generation)
        return data

    def _receive(self, sender: int, ref: NcclCudaRef) -> tuple[_Group, Any, Any]:
        with self._lock:
            turn = self._turns.setdefault(sender, threading.Lock())
        with turn:
            meeting = self._peers.get(sender)
            if meeting is None:
                raise TransferFailed("the sender has not been introduced, or is gone")
            known = self._from.get(sender)
            group = known or self._group(self._from, meeting.store(), sender, self._epoch, 1)
            if group.over:
                raise TransferFailed("the connection to the sender over NCCL is broken")
            data = self.gpu.torch.empty(ref.nbytes, dtype=self.gpu.torch.uint8, device=self.gpu.device)
            self._credit(sender, self.name, -ref.generation)
            return group, data, group.receive(data)

    def decline(self, sender: int, ref: NcclCudaRef) -> None:
        self._credit(sender, self.name, ref.generation)

    def _group(self, groups: dict[int, _Group], store: Any, sender: int, reader: int, rank: int) -> _Group:
        """The group of a sender and its reader, of which one is this process; its peer is known."""
        peer = sender if rank else reader
        group = groups.get(peer)
        if group is None:
            if peer not in self._peers:
                raise TransferFailed("the peer has not been introduced, or is gone")
            group = groups[peer] = _Group(self.gpu, store, sender, reader, rank)
        return group

    # -- lifetimes

    def forget(self, epoch: int) -> None:
        super().forget(epoch)
        self._peers.pop(epoch, None)
        with self._lock:
            asked = self._asked.pop(epoch, None)
            self._turns.pop(epoch, None)
        if asked is not None:
            asked.put(None)
        for groups in (self._to, self._from):
            if (group := groups.pop(epoch, None)) is not None:
                group.abort()

    def close(self) -> None:
        self.slots.close()
        for epoch in list(self._peers):
            self.forget(epoch)


@contextmanager
def _no_watchdog() -> Iterator[None]:
    """The environment as a group without a watchdog wants it when it is made."""
    with _environment:
        before = {name: os.environ.get(name) for name in _WATCHDOG}
        os.environ.update(_WATCHDOG)
        try:
            yield
        finally:
            for name, value in before.items():
                if value is None:
                    del os.environ[name]
                else:
                    os.environ[name] = value
