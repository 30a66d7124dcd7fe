"""Shared memory between the processes of one host: one pool a sender, mapped once a receiver.

The pool is a memfd: it has no name to leak, does not count against /dev/shm's size and goes when its last user
goes. A receiver of the same user opens it as `/proc/<pid>/fd/<fd>`. It is allocated and touched at start, so
that no transfer pays for page faults.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from omni_python.proto.errors import OmniError
from omni_python.proto.refs import ShmRef
from omni_python.relay.base import CreditFn, Relay, RelayOperation, RelaySettings, TransferFailed
from omni_python.relay.slots import GRAIN, Beside, Slot, Slots

COPY_LIMIT = 64 * 1024
"""Payloads up to this many bytes are copied out at once, so that their slots are free again: 10 us at most."""

PATIENCE = 0.5
"""Seconds to wait for room in the pool before a payload gets a segment of its own: readers may hold views until that
very payload arrives (a fan-in), so that waiting longer could be waiting for ever."""


class ShmRelay(Relay[ShmRef]):
    """Payloads that are larger than the whole pool, or found no room for a while, get a segment of their own, which is
    given back to the system when they are released."""

    name = "shm"

    def __init__(self, settings: RelaySettings, epoch: int, credit: CreditFn) -> None:
        self._pid = os.getpid()
        self._segment = Segment(settings.pool_bytes)
        super().__init__(Slots(len(self._segment.memory), beside=Beside(Segment, Segment.close, PATIENCE)))
        self._credit = credit
        self._maps: dict[tuple[int, int, int], mmap.mmap] = {}  # (epoch, fd, size) -> segment

    @property
    def travels(self) -> bool:
        return False

    # -- sending

    def _room(self, nbytes: int, request_id: str, timeout: float) -> tuple[Slot, np.ndarray]:
        slot = self.slots.take(nbytes, request_id, timeout)
        segment = slot.extra or self._segment
        return slot, segment.memory[slot.offset : slot.offset + slot.length]

    def _offer(self, slot: Slot, memory: np.ndarray, readers: Sequence[int]) -> RelayOperation[ShmRef]:
        segment = slot.extra or self._segment
        ref = ShmRef(
            slot.generation,
            memory.nbytes,
            self._pid,
            segment.fd,
            segment.size,
            slot.offset,
            slot.pressed and slot.extra is None,
        )
        self.slots.commit(slot, readers)
        return RelayOperation(ref, self.slots)

    # -- reading

    def get_view(self, sender: int, ref: ShmRef) -> np.ndarray:
        segment = self._map(sender, ref)
        if not 0 <= ref.offset <= ref.offset + ref.nbytes <= len(segment):
            raise TransferFailed("a relay slot lies outside its segment")
        if ref.pressed or ref.nbytes <= COPY_LIMIT:
            copy = np.frombuffer(segment, np.uint8, ref.nbytes, ref.offset).copy()
            self.decline(sender, ref)
            return copy
        return leased(segment, ref.nbytes, ref.offset, partial(self._credit, sender, self.name, ref.generation))

    def get(self, sender: int, ref: ShmRef, dest: np.ndarray, request_id: str = "") -> RelayOperation[ShmRef]:
        segment = self._map(sender, ref)
        if ref.offset + ref.nbytes > len(segment):
            raise TransferFailed("a relay slot lies outside its segment")
        dest[: ref.nbytes] = np.frombuffer(segment, np.uint8, ref.nbytes, ref.offset)
        self.decline(sender, ref)
        return RelayOperation(ref)

    def decline(self, sender: int, ref: ShmRef) -> None:
        self._credit(sender, self.name, ref.generation)

    # -- lifetimes

    def forget(self, epoch: int) -> None:
        super().forget(epoch)
        for key in [key for key in self._maps if key[0] == epoch]:
            self._maps.pop(key, None)

    def close(self) -> None:
        self.slots.close()
        self._segment.close()

    def _map(self, epoch: int, ref: ShmRef) -> mmap.mmap:
        key = (epoch, ref.fd, ref.size)
        segment = self._maps.get(key)
        if segment is not None and not self._is_extra(ref):
            return segment
        try:
            fd = os.open(f"/proc/{ref.pid}/fd/{ref.fd}", os.O_RDONLY)
        except OSError as error:
            raise TransferFailed(
                f"the sender's shared memory cannot be opened ({error}): is it still alive?"
            ) from error
        try:
            segment = mmap.mmap(fd, ref.size, mmap.MAP_SHARED | mmap.MAP_POPULATE, mmap.PROT_READ)
        except (OSError, ValueError) as error:
            raise TransferFailed(f"the sender's shared memory cannot be mapped: {error}") from error
        finally:
            os.close(fd)
        if not self._is_extra(ref):
            self._maps[key] = segment
        return segment

    @staticmethod
    def _is_extra(ref: ShmRef) -> bool:
        """A segment made for one payload: its descriptor's number may soon name another one, so it is never kept."""
        return ref.offset == 0 and ref.size - ref.nbytes < GRAIN


class _Lease(np.ndarray):
    """The base of every array and tensor that is cut from it, so that its end is theirs: numpy takes the base's base
    instead only where that is an array of the same class, and here it is a mapping."""

    __slots__ = ("end",)
    end: Callable[[], object]

    def __del__(self) -> None:  # several times cheaper than a weakref.finalize
        self.end()


def leased(mapping: mmap.mmap, nbytes: int, offset: int, end: Callable[[], object]) -> np.ndarray:
    """uint8 [nbytes] over a part of a mapping, which must not be closed by hand; `end` is called when the array is gone
    with all that was cut from it, perhaps inside the garbage collector."""
    lease = _Lease((nbytes,), np.uint8, mapping, offset)
    lease.end = end
    return lease.view(np.ndarray)


class Segment:
    """Touched memory behind a memfd, writable here."""

    def __init__(self, nbytes: int) -> None:
        self.size = nbytes + -nbytes % GRAIN
        self.fd = os.memfd_create("omni_python relay", os.MFD_CLOEXEC)
        try:
            os.posix_fallocate(self.fd, 0, self.size)  # a clear error now instead of SIGBUS at the first touch
            mapping = mmap.mmap(self.fd, self.size, mmap.MAP_SHARED | mmap.MAP_POPULATE)
        except OSError as error:
            os.close(self.fd)
            raise OmniError(f"no shared memory of {self.size} bytes for the relay: {error}") from error
        self.memory = np.frombuffer(mapping, np.uint8)

    def close(self) -> None:
        """The mapping itself goes with the last array over it."""
        fd, self.fd = self.fd, -1
        if fd >= 0:
            os.close(fd)
        self.memory = np.empty(0, np.uint8)
