"""CUDA shared memory between the processes of one host: one pool a sender and GPU, mapped once a receiver.

The pool is one cudaMalloc allocation outside torch's allocator, whose IPC handle is sent once with the GPU's UUID. An
interprocess event marks each slot as written: the sender records it on its stream before it sends the message, and the
reader's stream waits for it. A credit must not overtake the reader's own work on the GPU: it is sent once the GPU has
come past the point where the last view was dropped, for which a local event is watched. No host thread waits for a
stream.

Both sides follow torch's rule for tensors that cross streams: here they are written and read on the default stream, and
whoever uses them on another orders it with that one, before the first use and before the last view is dropped.

On the same GPU a reader gets a view, and nothing is copied. On another GPU of the host it gets a copy in its own
memory, made by the copy engine over NVLink or PCIe.
"""

from __future__ import annotations

import ctypes
import queue
import threading
import time
import weakref
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np

from omni_python.proto.codec import DevicePart
from omni_python.proto.refs import CudaRef
from omni_python.relay.base import (
    PUT_TIMEOUT,
    CreditFn,
    Relay,
    RelayOperation,
    RelaySettings,
    RelayUnavailable,
    TransferFailed,
)
from omni_python.relay.shm import COPY_LIMIT
from omni_python.relay.slots import OutOfSlots, Slot, Slots

EVENTS = 64
"""Events of a pool, one for each slot that is out."""

HANDLE = 64
"""Bytes of an IPC handle of memory or an event."""

GRAIN = 64 << 10
POLL = 50e-6
"""Seconds between looks whether the GPU has come past the end of a view."""


class _Pool(msgspec.Struct, array_like=True):
    """What a reader needs to map a pool."""

    gpu: str
    nbytes: int
    memory: bytes
    events: list[bytes]


class _Mapped:
    """Another process's pool, mapped here as `memory`, a uint8 CUDA tensor; None where it lies on another GPU."""

    def __init__(self, pointer: int, memory: Any, events: list[Any], nbytes: int) -> None:
        self.pointer = pointer
        self.memory = memory
        self.events = events
        self.nbytes = nbytes


class CudaShmRelay(Relay[CudaRef]):
    """Carries the CUDA tensors of payloads (`DevicePart`); what stays on the host goes another way."""

    name = "cuda_shm"

    def __init__(self, settings: RelaySettings, epoch: int, credit: CreditFn) -> None:
        try:
            import torch
            from cuda.bindings import runtime
        except ImportError as error:
            raise RelayUnavailable(
                f"cuda_shm needs torch and cuda-bindings: pip install cuda-bindings ({error})"
            ) from None
        if not torch.cuda.is_available():
            raise RelayUnavailable("relay cuda_shm needs an NVIDIA GPU that torch can use")
        if settings.gpu is None:
            raise RelayUnavailable("relay cuda_shm needs to know the process's GPU")
        super().__init__(Slots(settings.pool_bytes, GRAIN))
        self._torch: Any = torch
        self._cuda: Any = runtime
        self._credit = credit
        self._epoch = epoch
        self._device = torch.device("cuda", settings.gpu)
        torch.zeros(1, device=self._device)  # the context, before the runtime is used without torch
        with torch.cuda.device(self._device):
            self._pointer = int(self._call(runtime.cudaMalloc(settings.pool_bytes)))
            flags = runtime.cudaEventDisableTiming | runtime.cudaEventInterprocess
            self._events = [self._call(runtime.cudaEventCreateWithFlags(flags)) for _ in range(EVENTS)]
            memory = _raw(self._call(runtime.cudaIpcGetMemHandle(self._pointer)))
            events = [_raw(self._call(runtime.cudaIpcGetEventHandle(event))) for event in self._events]
        self._memory = self._wrap(self._pointer, settings.pool_bytes)
        self.gpu = str(torch.cuda.get_device_properties(self._device).uuid)
        self._announcement = msgspec.msgpack.encode(_Pool(self.gpu, settings.pool_bytes, memory, events))
        self._announced: dict[int, _Pool] = {}
        self._mapped: dict[int, _Mapped] = {}
        self._lock = threading.Lock()
        self._free_events = list(range(EVENTS))
        self._ended: queue.SimpleQueue[tuple[int, int] | None] = queue.SimpleQueue()  # views that are gone
        self._crediting = threading.Thread(target=self._send_credits, name="omni-cuda-credits", daemon=True)
        self._crediting.start()

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

    # -- sending

    def put_device(
        self, part: DevicePart, readers: Sequence[int], request_id: str = "", timeout: float = PUT_TIMEOUT
    ) -> RelayOperation[CudaRef]:
        """Offer a payload's CUDA tensors. The copy into the pool, and whatever made the tensors on torch's current
        stream, may still be under way when this returns. Raises like `put`."""
        slot = self.slots.take(part.nbytes, request_id, timeout)
        try:
            index = self._free_events.pop()
        except IndexError:
            self.slots.abandon(slot)
            raise OutOfSlots(f"{EVENTS} slots of the pool on the GPU are held by readers") from None
        slot.on_free = lambda: self._free_events.append(index)
        try:
            with self._torch.cuda.device(self._device):
                part.write_to(self._memory[slot.offset : slot.offset + slot.length])
                stream = self._torch.cuda.current_stream().cuda_stream
                self._call(self._cuda.cudaEventRecord(self._events[index], stream))
        except BaseException:
            self.slots.abandon(slot)
            raise
        ref = CudaRef(slot.generation, part.nbytes, slot.offset, index, slot.pressed)
        self.slots.commit(slot, readers)
        return RelayOperation(ref, lambda timeout: self.slots.wait_free(slot.generation, timeout))

    def _room(self, nbytes: int, request_id: str, timeout: float) -> tuple[Slot, np.ndarray]:
        raise TransferFailed("cuda_shm carries tensors on a GPU alone")

    def _offer(self, slot: Slot, memory: np.ndarray, readers: Sequence[int]) -> RelayOperation[CudaRef]:
        raise TransferFailed("cuda_shm carries tensors on a GPU alone")

    # -- reading

    def get_view(self, sender: int, ref: CudaRef) -> Any:
        """A uint8 CUDA tensor [nbytes] on this process's GPU; torch's current stream waits until it is written."""
        pool = self._map(sender)
        if ref.offset + ref.nbytes > pool.nbytes or ref.event >= EVENTS:
            raise TransferFailed("a relay slot lies outside its pool")
        torch, cuda = self._torch, self._cuda
        with torch.cuda.device(self._device):
            stream = torch.cuda.current_stream().cuda_stream
            self._call(cuda.cudaStreamWaitEvent(stream, pool.events[ref.event], 0))
            if pool.memory is not None and not ref.pressed and ref.nbytes > COPY_LIMIT:
                lease = _Pointer(pool.pointer + ref.offset, ref.nbytes)  # which the tensor's storage keeps
                end = weakref.finalize(lease, self._ended.put, (sender, ref.generation))
                end.atexit = False
                return torch.as_tensor(lease, device=self._device)
            copy = torch.empty(ref.nbytes, dtype=torch.uint8, device=self._device)
            kind = cuda.cudaMemcpyKind.cudaMemcpyDefault
            source = pool.pointer + ref.offset
            self._call(cuda.cudaMemcpyAsync(copy.data_ptr(), source, ref.nbytes, kind, stream))
            self._ended.put((sender, ref.generation))
            return copy

    def decline(self, sender: int, ref: CudaRef) -> None:
        self._credit(sender, self.name, ref.generation)

    def _map(self, sender: int) -> _Mapped:
        with self._lock:
            mapped = self._mapped.get(sender)
            if mapped is not None:
                return mapped
            pool = self._announced.get(sender)
            if pool is None:
                raise TransferFailed("the sender has not been introduced, or is gone")
            cuda = self._cuda
            with self._torch.cuda.device(self._device):
                if sender == self._epoch:
                    raise TransferFailed("a process cannot map its own pool")
                handle = _handle(cuda.cudaIpcMemHandle_t(), pool.memory)
                pointer = int(self._call(cuda.cudaIpcOpenMemHandle(handle, cuda.cudaIpcMemLazyEnablePeerAccess)))
                events = [
                    self._call(cuda.cudaIpcOpenEventHandle(_handle(cuda.cudaIpcEventHandle_t(), event)))
                    for event in pool.events
                ]
            memory = self._wrap(pointer, pool.nbytes) if pool.gpu == self.gpu else None
            mapped = self._mapped[sender] = _Mapped(pointer, memory, events, pool.nbytes)
            return mapped

    def _send_credits(self) -> None:
        """A credit follows once the GPU is past what was queued on this device when its view ended."""
        torch = self._torch
        waiting: list[tuple[Any, list[tuple[int, int]]]] = []
        while True:
            if waiting and self._ended.empty():
                time.sleep(POLL)
            else:
                ended = [self._ended.get()]
                while not self._ended.empty():
                    ended.append(self._ended.get())
                past = torch.cuda.Event()
                with torch.cuda.device(self._device):
                    # The legacy default stream comes after all work that blocking streams were given before.
                    past.record(torch.cuda.default_stream())
                waiting.append((past, [end for end in ended if end is not None]))
                if None in ended:
                    return
            pending = []
            for past, ends in waiting:
                if not past.query():
                    pending.append((past, ends))
                    continue
                for sender, generation in ends:
                    self._credit(sender, self.name, generation)
            waiting = pending

    # -- lifetimes

    def forget(self, epoch: int) -> None:
        """The mapping stays until the process ends: views of it may be in use on the GPU, and a pool is mapped once."""
        super().forget(epoch)
        self._announced.pop(epoch, None)
        with self._lock:
            self._mapped.pop(epoch, None)

    def close(self) -> None:
        self.slots.close()
        self._ended.put(None)
        self._crediting.join()

    def _wrap(self, pointer: int, nbytes: int) -> Any:
        return self._torch.as_tensor(_Pointer(pointer, nbytes), device=self._device)

    def _call(self, result: tuple[Any, ...]) -> Any:
        error, *values = result
        if int(error) != 0:
            raise TransferFailed(f"CUDA: {self._cuda.cudaGetErrorString(error)[1].decode()}")
        return values[0] if values else None


class _Pointer:
    """Memory that torch has not allocated, in the form in which it takes such."""

    def __init__(self, pointer: int, nbytes: int) -> None:
        self.__cuda_array_interface__ = {
            "shape": (nbytes,),
            "typestr": "|u1",
            "data": (pointer, False),
            "version": 3,
            "strides": None,
        }


def _raw(handle: Any) -> bytes:
    return ctypes.string_at(handle.getPtr(), HANDLE)


def _handle(empty: Any, raw: bytes) -> Any:
    ctypes.memmove(empty.getPtr(), raw, HANDLE)
    return empty
