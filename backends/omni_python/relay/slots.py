"""Which parts of a pool are out, to whom, and in which use: the bookkeeping that every backend shares.

A slot belongs to its producer until it is committed to its readers, and comes back when each of them has credited it,
exactly once: a late or doubled credit changes nothing. A reader that died gives back what it owed when the coordinator
says so (`forget`). No time-out ever frees a slot.
"""

from __future__ import annotations

import itertools
import math
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from omni_python.proto.errors import Cancelled, OmniError, Unavailable
from omni_python.relay.space import Space

GRAIN = 4096
"""Slots are multiples of a page, so that two slots never share one."""

_BESIDE = -1
"""In place of an offset: there is room beside the pool."""


class RelayClosed(OmniError):
    """The relay was closed while a payload waited for a slot."""


class OutOfSlots(Unavailable):
    """No slot came free in time."""


@dataclass(frozen=True, eq=False)
class Beside:
    """How memory beside the pool is had (of a number of bytes) and given back. It is for payloads that are larger than
    the whole pool, and for those that found no room in it for `patience` seconds but would wait longer."""

    make: Callable[[int], Any]
    free: Callable[[Any], object]
    patience: float = math.inf


@dataclass(slots=True, eq=False)
class Slot:
    """One use of a part of the pool, or of `extra` memory beside it. `on_free` is called when it is free again."""

    generation: int
    offset: int
    length: int
    request_id: str
    pressed: bool = False
    """Less than half of the pool is free: readers had better copy."""
    beside: bool = False
    extra: Any = None
    """What `Beside.make` made, of a slot beside the pool."""
    on_free: Callable[[], object] | None = None
    committed: bool = False
    readers: list[int] = field(default_factory=list)
    """Epochs that still owe a credit, one entry for each message."""


class Slots:
    """Those who wait for the pool are served in turn, and so are those who may go beside it. Thread-safe.

    No more bytes than the pool has are out beside it, or one payload that is larger than that."""

    def __init__(self, capacity: int, grain: int = GRAIN, beside: Beside | None = None) -> None:
        self.capacity = capacity
        self._grain = grain
        self._beside = beside
        self.waits = 0
        """How often a payload had to wait for a slot."""
        self.extras = 0
        """How often a payload got memory beside the pool."""
        self._space = Space(capacity)
        self._bytes_beside = 0
        self._out: dict[int, Slot] = {}  # by generation
        self._generations = itertools.count(1)
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._sleepers = 0
        """Threads that wait for a change; mostly there is none to be woken."""
        self._queue: deque[object] = deque()
        self._queue_beside: deque[object] = deque()
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

        Raises `OutOfSlots`, `RelayClosed`, `Cancelled` when the request ends meanwhile (`cleanup`), or what making
        memory beside the pool raises.
        """
        length = self._rounded(nbytes)
        if length > self.capacity and self._beside is None:
            raise OutOfSlots(f"{nbytes} bytes are more than the relay's whole pool of {self.capacity}")
        with self._lock:
            if length <= self.capacity:
                offset = None if self._queue else self._space.take(length)
            else:
                offset = None if self._queue_beside else self._fit_beside(length)
            if offset is None and not self._closed:
                offset = self._wait(length, request_id, timeout)
            if self._closed:
                raise RelayClosed("the relay is closed")
            assert offset is not None
            slot = Slot(next(self._generations), offset, length, request_id, self._space.free * 2 < self.capacity)
            self._out[slot.generation] = slot
            if offset != _BESIDE:
                return slot
            slot.offset, slot.beside = 0, True
        self._make(slot, nbytes)
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

    def _make(self, slot: Slot, nbytes: int) -> None:
        """The memory of a slot beside the pool: once its turn has come, so that those who wait have none, and without
        the lock, since it takes a while."""
        assert self._beside is not None
        try:
            extra = self._beside.make(nbytes)
        except BaseException:
            self.abandon(slot)
            raise
        with self._lock:
            if not self._closed:
                slot.extra, slot.on_free = extra, partial(self._beside.free, extra)
                self.extras += 1
                return
        self._beside.free(extra)
        raise RelayClosed("the relay is closed")

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
        """An offset, or `_BESIDE`; None when the relay is closed meanwhile."""
        self.waits += 1
        turn = object()
        if length <= self.capacity:
            self._queue.append(turn)
        patience = self._patience(length, timeout)
        self._waiting[request_id] += 1
        start = time.monotonic()
        try:
            while not self._closed:
                if request_id in self._cancelled:
                    raise Cancelled("the request ended while it waited for a relay slot")
                waited = time.monotonic() - start
                if waited >= patience and turn not in self._queue_beside:
                    self._queue_beside.append(turn)
                if (offset := self._turn(turn, length)) is not None:
                    return offset
                if waited >= timeout:
                    raise self._out_of_slots(length, timeout)
                with self._asleep():
                    self._changed.wait((timeout if waited >= patience else min(timeout, patience)) - waited)
            return None
        finally:
            for queue in (self._queue, self._queue_beside):
                if turn in queue:
                    queue.remove(turn)
            self._waiting[request_id] -= 1
            if not self._waiting[request_id]:
                del self._waiting[request_id]
                self._cancelled.discard(request_id)
            self._wake()  # it may be another's turn

    def _patience(self, length: int, timeout: float) -> float:
        """The seconds after which a payload that waits may go beside the pool."""
        if length > self.capacity:
            return 0
        if self._beside is None or timeout <= self._beside.patience:
            return math.inf
        return self._beside.patience

    def _turn(self, turn: object, length: int) -> int | None:
        """Room for one of those who wait, where it is the first of a queue."""
        if self._queue and self._queue[0] is turn and (offset := self._space.take(length)) is not None:
            return offset
        if self._queue_beside and self._queue_beside[0] is turn:
            return self._fit_beside(length)
        return None

    def _out_of_slots(self, length: int, timeout: float) -> OutOfSlots:
        size = f"{length} bytes"
        if length > self.capacity:
            size += f", more than the whole pool of {self.capacity},"
        return OutOfSlots(
            f"no relay slot of {size} came free in {timeout:g} s: {len(self)} slots are held by readers; "
            f"raise the stage's relay.slot_size_mb or relay.credits"
        )

    def _fit_beside(self, length: int) -> int | None:
        if self._bytes_beside and self._bytes_beside + length > self.capacity:
            return None
        self._bytes_beside += length
        return _BESIDE

    def _end(self, slot: Slot) -> None:
        if self._out.pop(slot.generation, None) is None:
            return
        slot.readers = []
        if slot.beside:
            self._bytes_beside -= slot.length
        else:
            self._space.give_back(slot.offset, slot.length)
        if slot.on_free is not None:
            slot.on_free()
        self._wake()

    def _rounded(self, nbytes: int) -> int:
        return -(-nbytes // self._grain) * self._grain or self._grain
