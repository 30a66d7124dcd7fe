"""What backends with one-sided reads share: the sender's bytes wait in registered memory until the reader fetches them.

One region is registered at start: its first half is the pool that this process offers from, its second half is where it
lands what it reads. So a slot is only out for as long as a read takes, and readers may keep what they got.
"""

from __future__ import annotations

import mmap
import queue
from abc import abstractmethod
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Generic, TypeVar

import numpy as np

from omni_python.proto.refs import MooncakeRef, NixlRef
from omni_python.relay.base import CreditFn, Relay, RelayOperation, RelaySettings
from omni_python.relay.shm import COPY_LIMIT, leased
from omni_python.relay.slots import Beside, OutOfSlots, Slot, Slots

R = TypeVar("R", NixlRef, MooncakeRef)


class Region:
    """Private memory, touched, page by page as the system has it."""

    def __init__(self, nbytes: int) -> None:
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | mmap.MAP_POPULATE
        self.mapping = mmap.mmap(-1, max(nbytes, 1), flags)
        self.memory = np.frombuffer(self.mapping, np.uint8)
        self.address: int = self.memory.ctypes.data
        self.handle: Any = None
        """What the backend made of it."""


class ReadRelay(Relay[R], Generic[R]):
    """`put` and `get` over four primitives of a backend."""

    def __init__(self, settings: RelaySettings, epoch: int, credit: CreditFn) -> None:
        self._epoch = epoch
        self._credit = credit
        self._region = Region(2 * settings.pool_bytes)
        super().__init__(Slots(settings.pool_bytes, beside=Beside(self._registered, self._deregister)))
        self._landing = Slots(settings.pool_bytes)
        self._landed: queue.SimpleQueue[int] = queue.SimpleQueue()  # generations of landing slots that are free again

    @abstractmethod
    def _register(self, region: Region) -> None: ...

    @abstractmethod
    def _deregister(self, region: Region) -> None: ...

    @abstractmethod
    def _ref(self, slot: Slot, nbytes: int, address: int) -> R: ...

    @abstractmethod
    def _read(self, sender: int, ref: R, address: int) -> None:
        """Fetch to local registered memory and credit the slot. Raises `TransferFailed`."""

    # -- sending

    def _room(self, nbytes: int, request_id: str, timeout: float) -> tuple[Slot, np.ndarray]:
        slot = self.slots.take(nbytes, request_id, timeout)
        region = slot.extra or self._region
        return slot, region.memory[slot.offset : slot.offset + slot.length]

    def _registered(self, nbytes: int) -> Region:
        region = Region(nbytes)
        self._register(region)
        return region

    def _offer(self, slot: Slot, memory: np.ndarray, readers: Sequence[int]) -> RelayOperation[R]:
        region = slot.extra or self._region
        ref = self._ref(slot, memory.nbytes, region.address + slot.offset)
        self.slots.commit(slot, readers)
        return RelayOperation(ref, self.slots)

    # -- reading

    def get_view(self, sender: int, ref: R) -> np.ndarray:
        with suppress(queue.Empty):  # never waiting: another thread that reads may take what this one saw there
            while True:
                self._landing.credit(self._landed.get_nowait(), self._epoch)
        try:
            slot = self._landing.take(ref.nbytes)
        except OutOfSlots:
            return self._read_aside(sender, ref)
        offset = self.slots.capacity + slot.offset
        try:
            self._read(sender, ref, self._region.address + offset)
        except BaseException:
            self._landing.abandon(slot)
            raise
        if ref.nbytes <= COPY_LIMIT:
            copy = self._region.memory[offset : offset + ref.nbytes].copy()
            self._landing.abandon(slot)
            return copy
        self._landing.commit(slot, [self._epoch])
        lease = leased(self._region.mapping, ref.nbytes, offset, partial(self._landed.put, slot.generation))
        lease.flags.writeable = False
        return lease

    def _read_aside(self, sender: int, ref: R) -> np.ndarray:
        """What is held of earlier reads fills the landing half: read to memory of its own."""
        region = self._registered(ref.nbytes)
        try:
            self._read(sender, ref, region.address)
        finally:
            self._deregister(region)
        region.memory.flags.writeable = False
        return region.memory[: ref.nbytes]

    def decline(self, sender: int, ref: R) -> None:
        self._credit(sender, self.name, ref.generation)
