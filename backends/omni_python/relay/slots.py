"""Which parts of a pool are out, to whom, and in which use: the bookkeeping that every backend shares.

A slot belongs to its producer until it is committed to its readers, and comes back when each of them has credited it,
exactly once: a late or doubled credit changes nothing. A reader that died gives back what it owed when the coordinator
says so (`forget`). No time-out ever frees a slot.
"""

from __future__ import annotations

import bisect
import itertools
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from omni_python.proto.errors import Cancelled, OmniError, Unavailable

GRAIN = 4096
"""Slots are multiples of a page, so that two slots never share one."""


class RelayClosed(OmniError):
    """The relay was closed while a payload waited for a slot."""


class OutOfSlots(Unavailable):
    """No slot came free in time."""


@dataclass(slots=True, eq=False)
class Slot:
    """One use of a part of the pool, or of `extra` memory beside it, which `on_free` takes back."""

    generation: int
    offset: int
    length: int
    request_id: str
    pressed: bool = False
    """Less than half of the pool is free: readers had better copy."""
    extra: Any = None
    on_free: Callable[[], None] | None = None
    committed: bool = False
    readers: list[int] = field(default_factory=list)
    """Epochs that still owe a credit, one entry for each message."""


class Slots:
    """First fit at the lowest offset (the warmest pages). Those who wait are served in turn. Thread-safe."""

    def __init__(self, capacity: int, grain: int = GRAIN) -> None:
        self.capacity = capacity
        self._grain = grain
        self.waits = 0
        """How often a payload had to wait for a slot."""
        self.extras = 0
        """How often a payload got memory beside the pool."""
        self._free: list[tuple[int, int]] = [(0, capacity)]  # (offset, length), sorted, never adjacent
        self._free_bytes = capacity
        self._extra_bytes = 0
        self._out: dict[int, Slot] = {}  # by generation
        self._generations = itertools.count(1)
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._sleepers = 0
        """Threads that wait for a change; mostly there is none to be woken."""
        self._queue: deque[object] = deque()
        self._waiting: Counter[str] = Counter()
        self._cancelled: set[str] = set()
        self._gone: set[int] = set()  # epochs of dead readers: what is being written for one may be lent to it later
        self._closed = False

    def __len__(self) -> int:
        return len(self._out)

    def lent(self) -> Counter[int | None]:
        """Slots that are out, by the reader's epoch; None for those that are being written."""
        with self._lock:
            return Counter(reader for slot in self._out.values() for reader in (slot.readers or (None,)))

    def take(self, nbytes: int, request_id: str = "", timeout: float = 0.0) -> Slot:
        """A slot of at least `nbytes`; waits for one up to `timeout` seconds.

        Raises `OutOfSlots`, `RelayClosed`, or `Cancelled` when the request ends meanwhile (`cleanup`).
        """
        length = self._rounded(nbytes)
        if length > self.capacity:
            raise OutOfSlots(f"{nbytes} bytes are more than the relay's whole pool of {self.capacity}")
        with self._lock:
            offset = None if self._queue else self._fit(length)
            if offset is None and not self._closed:
                offset = self._wait(length, request_id, timeout)
            if self._closed:
                raise RelayClosed("the relay is closed")
            assert offset is not None
            slot = Slot(next(self._generations), offset, length, request_id, self._free_bytes * 2 < self.capacity)
            self._out[slot.generation] = slot
            return slot

    def take_extra(self, nbytes: int, request_id: str, extra: Any, on_free: Callable[[], None]) -> Slot:
        """A slot for memory beside the pool: for what is larger than all of it, or cannot wait.

        Raises `OutOfSlots` when as much as the pool holds is out already in this way.
        """
        length = self._rounded(nbytes)
        with self._lock:
            if self._closed:
                raise RelayClosed("the relay is closed")
            if self._extra_bytes and self._extra_bytes + length > self.capacity:
                raise self._out_of_slots(length, 0)
            slot = Slot(next(self._generations), 0, length, request_id, True, extra, on_free)
            self._extra_bytes += length
            self.extras += 1
            self._out[slot.generation] = slot
            return slot

    def commit(self, slot: Slot, readers: Sequence[int]) -> None:
        """Lend a slot to the processes with these epochs; each owes one credit for each time that it is named."""
        with self._lock:
            slot.committed = True
            slot.readers = [epoch for epoch in readers if epoch not in self._gone] if self._gone else list(readers)
            if not slot.readers:
                self._end(slot)

    def credit(self, generation: int, reader: int) -> bool:
        """A reader is done with a slot, or will never see it. False where it owes nothing for that generation."""
        with self._lock:
            slot = self._out.get(generation)
            if slot is None or reader not in slot.readers:
                return False
            slot.readers.remove(reader)
            if not slot.readers:
                self._end(slot)
            return True

    def abandon(self, slot: Slot) -> None:
        """A slot that was never committed is free again; others are left alone."""
        with self._lock:
            if not slot.committed:
                self._end(slot)

    def forget(self, reader: int) -> None:
        """A reader's process is dead: it owes nothing any more, and never will."""
        with self._lock:
            self._gone.add(reader)
            for slot in [slot for slot in self._out.values() if reader in slot.readers]:
                slot.readers = [epoch for epoch in slot.readers if epoch != reader]
                if not slot.readers:
                    self._end(slot)

    def welcome(self, reader: int) -> None:
        """A reader that was forgotten lives, and was only cut off."""
        self._gone.discard(reader)

    def cleanup(self, request_id: str) -> None:
        """A request is over: whoever waits for a slot for it stops. Slots that readers hold stay theirs."""
        with self._lock:
            if request_id in self._waiting:
                self._cancelled.add(request_id)
                self._wake()

    def wait_free(self, generation: int, timeout: float | None) -> bool:
        """Whether all readers are done with a slot, waiting for them up to `timeout` seconds."""
        with self._lock, self._asleep():
            return self._changed.wait_for(lambda: generation not in self._out, timeout)

    def close(self) -> None:
        """Wake those who wait; nothing is out any more."""
        with self._lock:
            self._closed = True
            for slot in list(self._out.values()):
                self._end(slot)
            self._wake()

    # -- with the lock held

    @contextmanager
    def _asleep(self) -> Iterator[None]:
        self._sleepers += 1
        try:
            yield
        finally:
            self._sleepers -= 1

    def _wake(self) -> None:
        if self._sleepers:
            self._changed.notify_all()

    def _wait(self, length: int, request_id: str, timeout: float) -> int | None:
        self.waits += 1
        turn = object()
        self._queue.append(turn)
        self._waiting[request_id] += 1
        end = time.monotonic() + timeout
        try:
            while not self._closed:
                if request_id in self._cancelled:
                    raise Cancelled("the request ended while it waited for a relay slot")
                if self._queue[0] is turn and (offset := self._fit(length)) is not None:
                    return offset
                left = end - time.monotonic()
                if left <= 0:
                    raise self._out_of_slots(length, timeout)
                with self._asleep():
                    self._changed.wait(left)
            return None
        finally:
            self._queue.remove(turn)
            self._waiting[request_id] -= 1
            if not self._waiting[request_id]:
                del self._waiting[request_id]
                self._cancelled.discard(request_id)
            self._wake()  # it may be another's turn

    def _out_of_slots(self, length: int, timeout: float) -> OutOfSlots:
        return OutOfSlots(
            f"no relay slot of {length} bytes came free in {timeout:.0f} s: {len(self)} slots are held by readers; "
            f"raise the stage's relay.slot_size_mb or relay.credits"
        )

    def _fit(self, length: int) -> int | None:
        for index, (offset, extent) in enumerate(self._free):
            if extent >= length:
                if extent == length:
                    del self._free[index]
                else:
                    self._free[index] = (offset + length, extent - length)
                self._free_bytes -= length
                return offset
        return None

    def _end(self, slot: Slot) -> None:
        if self._out.pop(slot.generation, None) is None:
            return
        slot.readers = []
        if slot.extra is not None:
            self._extra_bytes -= slot.length
        else:
            self._give_back(slot.offset, slot.length)
        if slot.on_free is not None:
            slot.on_free()
        self._wake()

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

    def _rounded(self, nbytes: int) -> int:
        return -(-nbytes // self._grain) * self._grain or self._grain
