"""CUDA shared memory between the processes of one host: one pool a sender and GPU, mapped once a receiver.

The pool is one cudaMalloc allocation outside torch's allocator, whose IPC handle is sent once with the GPU's UUID. An
interprocess event marks each slot as written: the sender records it on its stream before it sends the message, and the
reader's stream waits for it (`gates`). A credit must not overtake the reader's own work on the GPU: it is sent once the
GPU has come past the point where the last view was dropped. No host thread waits for a stream.

On the same GPU a reader gets a view, and nothing is copied. On another GPU of the host it gets a copy in its own
memory, made by the copy engine over NVLink or PCIe. What is large is written part by part for it, each with an event of
its own, so that the first are on their way while the others are written.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Sequence
from functools import partial
from typing import Any

import msgspec

from omni_python.proto.codec import DevicePart
from omni_python.proto.refs import CudaRef
from omni_python.relay.base import CreditFn, RelaySettings, TransferFailed
from omni_python.relay.device import GRAIN, DeviceRelay, Gpu, Leases
from omni_python.relay.gates import Gates
from omni_python.relay.slots import OutOfSlots, Slot

EVENTS = 64
"""Events of a pool, one for each slot that is out."""

PART = 64 << 20
"""Bytes from which on a payload is written in parts: a GPU takes about as long to copy that many (30 us) as a message
takes to its reader."""

MAX_PARTS = 8

HANDLE = 64
"""Bytes of an IPC handle of memory or an event."""


class _Pool(msgspec.Struct, array_like=True):
    """What a reader needs to map a pool."""

    gpu: str
    nbytes: int
    memory: bytes
    events: list[bytes]


class _Mapped:
    """Another process's pool, mapped here at `pointer`; `users` are views of it, and reads under way."""

    def __init__(self, pool: _Pool, pointer: int, events: list[Any]) -> None:
        self.gpu = pool.gpu
        self.nbytes = pool.nbytes
        self.pointer = pointer
        self.events = events
        self.users = 0
        self.gone = False


class CudaShmRelay(DeviceRelay[CudaRef]):
    name = "cuda_shm"

    def __init__(self, settings: RelaySettings, epoch: int, credit: CreditFn) -> None:
        gpu = Gpu(self.name, settings.gpu)
        super().__init__(gpu, gpu.malloc(settings.pool_bytes), settings.pool_bytes)
        self._credit = credit
        self._epoch = epoch
        self._cuda = runtime = gpu.runtime
        call = gpu.call
        with self.gpu.current():
            flags = runtime.cudaEventDisableTiming | runtime.cudaEventInterprocess
            self._events = [call(runtime.cudaEventCreateWithFlags(flags)) for _ in range(EVENTS)]
            memory = _raw(call(runtime.cudaIpcGetMemHandle(self._pool)))
            events = [_raw(call(runtime.cudaIpcGetEventHandle(event))) for event in self._events]
        self._announcement = msgspec.msgpack.encode(_Pool(self.gpu.uuid, settings.pool_bytes, memory, events))
        self._announced: dict[int, _Pool] = {}
        self._mapped: dict[int, _Mapped] = {}
        self._lock = threading.Lock()
        self._free_events = list(range(EVENTS))
        self._events_of: dict[int, list[int]] = {}  # by generation of the slot: that of all of it, those of its parts
        self._leases = Leases(self.gpu)
        self._gates = Gates(self.gpu)

    @property
    def travels(self) -> bool:
        return False

    def announcement(self) -> bytes:
        return self._announcement

    def introduce(self, epoch: int, announcement: bytes) -> None:
        try:
            pool = msgspec.msgpack.decode(announcement, type=_Pool)
        except msgspec.MsgspecError as error:
            raise TransferFailed(f"a peer's announcement cannot be read: {error}") from error
        if len(pool.memory) != HANDLE or len(pool.events) != EVENTS or any(len(e) != HANDLE for e in pool.events):
            raise TransferFailed("a peer's announcement has handles of another kind")
        self._announced[epoch] = pool

    def reaches(self, reader: int) -> bool:
        pool = self._announced.get(reader)
        return pool is not None and self.gpu.reads_from(pool.gpu)

    # -- sending

    def _take(self, nbytes: int, request_id: str, timeout: float) -> Slot:
        slot = super()._take(nbytes, request_id, timeout)
        try:
            self._events_of[slot.generation] = [self._free_events.pop()]
        except IndexError:
            self.slots.abandon(slot)
            raise OutOfSlots(f"{EVENTS} slots of the pool on the GPU are held by readers") from None
        slot.on_free = partial(self._free_event, slot.generation)
        return slot

    def _free_event(self, generation: int) -> None:
        self._free_events += self._events_of.pop(generation)

    def _write(self, slot: Slot, part: DevicePart, readers: Sequence[int]) -> None:
        if part.nbytes < 2 * PART or not any(self._is_elsewhere(reader) for reader in readers):
            super()._write(slot, part, readers)
            return
        *firsts, (start, end) = parts_of(part.nbytes, min(part.nbytes // PART, MAX_PARTS))
        if len(self._free_events) < 2 * len(firsts):  # other slots need them, or soon will
            super()._write(slot, part, readers)
            return
        for begin, stop in firsts:
            self._copy(slot, part, begin, stop)
            index = self._free_events.pop()
            self._events_of[slot.generation].append(index)
            self._record(index)
        self._copy(slot, part, start, end)

    def _is_elsewhere(self, reader: int) -> bool:
        """Whether a reader has another GPU, and therefore copies."""
        pool = self._announced.get(reader)
        return pool is not None and pool.gpu != self.gpu.uuid

    def _record(self, index: int) -> None:
        self.gpu.call(self._cuda.cudaEventRecord(self._events[index], self.gpu.stream()))

    def _written(self, slot: Slot, nbytes: int) -> CudaRef:
        """Nothing is waited for: what writes the slot may still be under way when this returns."""
        index, *parts = self._events_of[slot.generation]
        self._record(index)
        return CudaRef(slot.generation, nbytes, slot.offset, index, slot.pressed, tuple(parts))

    # -- reading

    def get_view(self, sender: int, ref: CudaRef) -> Any:
        """Torch's current stream waits until the sender has written."""
        pool = self._use(sender)
        done = partial(self._done, pool, sender, ref.generation)
        try:
            if ref.offset + ref.nbytes > pool.nbytes or max((ref.event, *ref.parts)) >= EVENTS:
                raise TransferFailed("a relay slot lies outside its pool")
            with self.gpu.current():
                return self._view(pool, ref, done)
        except BaseException:
            self._release(pool)
            raise

    def _view(self, pool: _Mapped, ref: CudaRef, done: partial[None]) -> Any:
        source = pool.pointer + ref.offset
        if pool.gpu == self.gpu.uuid and not ref.pressed:
            self._wait(pool, ref.event)
            return self._leases.view(source, ref.nbytes, done)
        copy = self.gpu.torch.empty(ref.nbytes, dtype=self.gpu.torch.uint8, device=self.gpu.device)
        target, events = copy.data_ptr(), (*ref.parts, ref.event)
        for event, (start, end) in zip(events, parts_of(ref.nbytes, len(events)), strict=False):
            self._wait(pool, event)
            self.gpu.copy(target + start, source + start, end - start)
        self._leases.end(done)
        return copy

    def _wait(self, pool: _Mapped, event: int) -> None:
        self._gates.wait(self.gpu.stream(), pool.events[event], lambda: pool.gone)

    def decline(self, sender: int, ref: CudaRef) -> None:
        self._credit(sender, self.name, ref.generation)

    def _done(self, pool: _Mapped, sender: int, generation: int) -> None:
        self._credit(sender, self.name, generation)
        self._release(pool)

    # -- mappings

    def _use(self, sender: int) -> _Mapped:
        """The sender's pool, mapped at the first use (some milliseconds, most of them for the events)."""
        with self._lock:
            mapped = self._mapped.get(sender)
            if mapped is None:
                pool = self._announced.get(sender)
                if pool is None:
                    raise TransferFailed("the sender has not been introduced, or is gone")
                if sender == self._epoch:
                    raise TransferFailed("a process cannot map its own pool")
                mapped = self._mapped[sender] = self._map(pool)
            mapped.users += 1
            return mapped

    def _map(self, pool: _Pool) -> _Mapped:
        cuda, call = self._cuda, self.gpu.call
        with self.gpu.current():  # events are opened on the GPU that is to wait for them
            handle = _handle(cuda.cudaIpcMemHandle_t(), pool.memory)
            pointer = int(call(cuda.cudaIpcOpenMemHandle(handle, cuda.cudaIpcMemLazyEnablePeerAccess)))
            events = [
                call(cuda.cudaIpcOpenEventHandle(_handle(cuda.cudaIpcEventHandle_t(), event))) for event in pool.events
            ]
        return _Mapped(pool, pointer, events)

    def _release(self, pool: _Mapped) -> None:
        with self._lock:
            pool.users -= 1
            unmap = pool.gone and not pool.users
        if unmap:
            self._leases.end(partial(self._unmap, pool))

    def _unmap(self, pool: _Mapped) -> None:
        """A dead process's memory is only given back to the GPU by its last user."""
        with self.gpu.current():
            for event in pool.events:
                self.gpu.call(self._cuda.cudaEventDestroy(event))
            self.gpu.call(self._cuda.cudaIpcCloseMemHandle(pool.pointer))

    # -- lifetimes

    def forget(self, epoch: int) -> None:
        super().forget(epoch)
        self._announced.pop(epoch, None)
        with self._lock:
            pool = self._mapped.pop(epoch, None)
            if pool is None:
                return
            pool.gone = True
            pool.users += 1
        self._release(pool)

    def close(self) -> None:
        """The pool stays until the process ends, since readers may have views of it."""
        self.slots.close()
        self._gates.close()
        self._leases.close()


def parts_of(nbytes: int, count: int) -> list[tuple[int, int]]:
    """(start, end) of `count` parts of about the same length, or of fewer where they would be shorter than `GRAIN`."""
    step = max(-(-nbytes // count), 1)
    step += -step % GRAIN
    return [(start, min(start + step, nbytes)) for start in range(0, nbytes, step)]


def _raw(handle: Any) -> bytes:
    return ctypes.string_at(handle.getPtr(), HANDLE)


def _handle(empty: Any, raw: bytes) -> Any:
    ctypes.memmove(empty.getPtr(), raw, HANDLE)
    return empty
