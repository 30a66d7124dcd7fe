"""Shared memory between the processes of one host: one pool a sender, mapped once a receiver.

The pool is a memfd: it has no name to leak, does not count against /dev/shm's size and goes when its last user
goes. A receiver of the same user opens it as `/proc/<pid>/fd/<fd>`. It is allocated and touched at start, so
that no transfer pays for page faults.

A slot is handed out by `ShmPool.put` with a new generation and comes back by `release` with that generation,
exactly once: a late or doubled credit changes nothing. No time-out frees a slot that a reader may still hold.
"""

from __future__ import annotations

import bisect
import itertools
import mmap
import os
import threading
import weakref
from collections.abc import Callable

import numpy as np

from omni_python.proto.codec import EncodedPayload
from omni_python.proto.errors import OmniError, Unavailable
from omni_python.proto.messages import ShmRef

GRAIN = 4096
"""Slots are multiples of a page, so that two slots never share one."""

COPY_LIMIT = 64 * 1024
"""Payloads up to this many bytes are copied out at once: cheaper than keeping a lease (about 10 us)."""


class RelayClosed(OmniError):
    """The pool was closed while a payload waited for a slot."""


class ShmPool:
    """The sending side: slots of one shared segment, first fit at the lowest offset (the warmest pages).

    Payloads larger than the whole pool get a segment of their own, which is given back to the system when
    they are released.
    """

    def __init__(self, nbytes: int) -> None:
        self._pid = os.getpid()
        self._segment = _Segment(nbytes)
        self._capacity = len(self._segment.memory)
        self._free: list[tuple[int, int]] = [(0, self._capacity)]  # (offset, length), sorted, never adjacent
        self._free_bytes = self._capacity
        self._slots: dict[tuple[int, int], tuple[int, int]] = {}  # (fd, offset) -> (generation, length)
        self._oversize: dict[int, _Segment] = {}
        self._generations = itertools.count(1)
        self._changed = threading.Condition()
        self._closed = False
        self.waits = 0
        """How often a payload had to wait for a slot."""

    @property
    def slots_in_use(self) -> int:
        return len(self._slots)

    def put(self, encoded: EncodedPayload, timeout: float) -> ShmRef:
        """Copy a payload's tensors into a slot; waits for one while the pool is full.

        Raises `Unavailable` when none came free within `timeout` seconds.
        """
        length = encoded.nbytes + -encoded.nbytes % GRAIN
        if length > self._capacity:
            segment = _Segment(length)
            with self._changed:
                generation = next(self._generations)
                self._oversize[segment.fd] = segment
                self._slots[segment.fd, 0] = (generation, length)
            encoded.write_to(segment.memory)
            return ShmRef(self._pid, segment.fd, length, 0, encoded.nbytes, generation)
        with self._changed:
            offset = self._take(length)
            if offset is None:
                self.waits += 1
                if not self._changed.wait_for(lambda: self._closed or self._fits(length), timeout):
                    raise Unavailable(
                        f"no relay slot of {length} bytes came free in {timeout:.0f} s: {self.slots_in_use} slots are "
                        f"held by readers; raise the stage's relay.slot_size_mb or relay.credits"
                    )
                offset = self._take(length)
            if self._closed or offset is None:
                raise RelayClosed("the relay is closed")
            generation = next(self._generations)
            self._slots[self._segment.fd, offset] = (generation, length)
            pressed = self._free_bytes * 2 < self._capacity
        encoded.write_to(self._segment.memory[offset : offset + length])
        return ShmRef(self._pid, self._segment.fd, self._capacity, offset, encoded.nbytes, generation, pressed)

    def release(self, fd: int, offset: int, generation: int) -> bool:
        """A reader is done with a slot. False for a slot that is not out in this generation."""
        with self._changed:
            held = self._slots.get((fd, offset))
            if held is None or held[0] != generation:
                return False
            del self._slots[fd, offset]
            if fd in self._oversize:
                self._oversize.pop(fd).close()
            else:
                self._give_back(offset, held[1])
            self._changed.notify_all()
            return True

    def close(self) -> None:
        """Wake those who wait, and let go of the memory; readers keep what they have mapped."""
        with self._changed:
            if self._closed:
                return
            self._closed = True
            self._changed.notify_all()
            for segment in (self._segment, *self._oversize.values()):
                segment.close()
            self._oversize.clear()
            self._slots.clear()

    def _fits(self, length: int) -> bool:
        return any(extent >= length for _, extent in self._free)

    def _take(self, length: int) -> int | None:
        for index, (offset, extent) in enumerate(self._free):
            if extent >= length:
                if extent == length:
                    del self._free[index]
                else:
                    self._free[index] = (offset + length, extent - length)
                self._free_bytes -= length
                return offset
        return None

    def _give_back(self, offset: int, length: int) -> None:
        index = bisect.bisect(self._free, (offset, 0))
        self._free_bytes += length
        if index < len(self._free) and self._free[index][0] == offset + length:
            length += self._free.pop(index)[1]
        if index and sum(self._free[index - 1]) == offset:
            before = self._free[index - 1]
            self._free[index - 1] = (before[0], before[1] + length)
        else:
            self._free.insert(index, (offset, length))


class ShmReader:
    """The receiving side: maps each sender's segments once and lends views of their slots.

    `credit(epoch, fd, offset, generation)` is called once for every slot read, from any thread, when the last
    view of it is gone (or at once, where it was copied out).
    """

    def __init__(self, credit: Callable[[int, int, int, int], object]) -> None:
        self._credit = credit
        self._maps: dict[tuple[int, int, int], mmap.mmap] = {}  # (epoch, fd, size) -> segment

    def view(self, epoch: int, ref: ShmRef) -> np.ndarray:
        """The slot's bytes, uint8 [nbytes], read-only: a view, or a copy where that is better.

        Raises `Unavailable` when the sender is gone.
        """
        segment = self._map(epoch, ref)
        if not 0 <= ref.offset <= ref.offset + ref.nbytes <= len(segment):
            raise OmniError("a relay slot lies outside its segment")
        if ref.pressed or ref.nbytes <= COPY_LIMIT:
            copy = np.frombuffer(segment, np.uint8, ref.nbytes, ref.offset).copy()
            self._credit(epoch, ref.fd, ref.offset, ref.generation)
            return copy
        # A fresh array straight over the mapping is the base of every tensor cut from it, so its end is theirs.
        lease = np.frombuffer(segment, np.uint8, ref.nbytes, ref.offset)
        end = weakref.finalize(lease, self._credit, epoch, ref.fd, ref.offset, ref.generation)
        end.atexit = False
        return lease

    def decline(self, epoch: int, ref: ShmRef) -> None:
        """Give a slot back unread."""
        self._credit(epoch, ref.fd, ref.offset, ref.generation)

    def forget(self, epoch: int) -> None:
        """A sender is dead: drop its mappings. Views that are still held stay valid."""
        for key in [key for key in self._maps if key[0] == epoch]:
            del self._maps[key]

    def _map(self, epoch: int, ref: ShmRef) -> mmap.mmap:
        key = (epoch, ref.fd, ref.size)
        segment = self._maps.get(key)
        if segment is not None and ref.offset + ref.nbytes <= len(segment) and not self._is_oversize(ref):
            return segment
        try:
            fd = os.open(f"/proc/{ref.pid}/fd/{ref.fd}", os.O_RDONLY)
        except OSError as error:
            raise Unavailable(f"the sender's shared memory cannot be opened ({error}): is it still alive?") from error
        try:
            segment = mmap.mmap(fd, ref.size, mmap.MAP_SHARED | mmap.MAP_POPULATE, mmap.PROT_READ)
        except (OSError, ValueError) as error:
            raise OmniError(f"the sender's shared memory cannot be mapped: {error}") from error
        finally:
            os.close(fd)
        if not self._is_oversize(ref):
            self._maps[key] = segment
        return segment

    @staticmethod
    def _is_oversize(ref: ShmRef) -> bool:
        """A segment made for one payload: its descriptor's number may soon name another one, so it is never kept."""
        return ref.offset == 0 and ref.size - ref.nbytes < GRAIN


class _Segment:
    """Touched memory behind a memfd, writable here."""

    def __init__(self, nbytes: int) -> None:
        nbytes += -nbytes % GRAIN
        self.fd = os.memfd_create("omni_python relay", os.MFD_CLOEXEC)
        try:
            os.posix_fallocate(self.fd, 0, nbytes)  # a clear error now instead of SIGBUS at the first touch
            mapping = mmap.mmap(self.fd, nbytes, mmap.MAP_SHARED | mmap.MAP_POPULATE)
        except OSError as error:
            os.close(self.fd)
            raise OmniError(f"no shared memory of {nbytes} bytes for the relay: {error}") from error
        self.memory = np.frombuffer(mapping, np.uint8)

    def close(self) -> None:
        """The mapping itself goes with the last array over it."""
        os.close(self.fd)
        self.memory = np.empty(0, np.uint8)
