"""What the ways between GPUs share: one GPU as torch and CUDA's runtime see it, and views whose end the GPU must pass.

Everything here is ordered on torch's default stream of the process's GPU, after torch's rule for tensors that cross
streams: whoever writes or reads them on another stream orders it with that one, before the first use and before the
last view is dropped.
"""

from __future__ import annotations

import ctypes
import logging
import queue
import sys
import threading
import time
from abc import abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from omni_python.proto.codec import DevicePart
from omni_python.relay.base import PUT_TIMEOUT, R, Relay, RelayOperation, RelayUnavailable, TransferFailed
from omni_python.relay.put_off import call_later
from omni_python.relay.slots import Slot, Slots

GRAIN = 64 << 10
"""Bytes: slots of a pool on a GPU are multiples of this."""

POLL = 50e-6
"""Seconds between looks whether the GPU has come past the end of a view."""

CALM = 200e-6
"""Seconds in which ends of views are gathered: whoever dropped one is about to answer, and needs the interpreter."""

_NOTHING_TO_CHANGE = nullcontext()
_PR_SET_TIMERSLACK = 29

log = logging.getLogger(__name__)


class Gpu:
    """The GPU with this index, its context made. Raises `RelayUnavailable` where a library or the GPU is missing."""

    def __init__(self, relay: str, index: int | None) -> None:
        try:
            import torch
            from cuda.bindings import runtime
        except ImportError as error:
            raise RelayUnavailable(
                f"relay {relay} needs torch and cuda-bindings: pip install cuda-bindings ({error})"
            ) from None
        if not torch.cuda.is_available():
            raise RelayUnavailable(f"relay {relay} needs an NVIDIA GPU that torch can use")
        if index is None:
            raise RelayUnavailable(f"relay {relay} needs to know the process's GPU")
        self.torch: Any = torch
        self.runtime: Any = runtime
        self.index = index
        self.device = torch.device("cuda", index)
        torch.zeros(1, device=self.device)  # torch makes the context, not a thread of some library
        self.uuid = str(torch.cuda.get_device_properties(self.device).uuid)
        self._current_device: Callable[[], int] = torch._C._cuda_getDevice
        self._success = runtime.cudaError_t.cudaSuccess
        self._any_kind = runtime.cudaMemcpyKind.cudaMemcpyDefault

    def current(self) -> AbstractContextManager[Any]:
        """A context manager: this GPU is the thread's."""
        if self._current_device() == self.index:
            return _NOTHING_TO_CHANGE
        context: AbstractContextManager[Any] = self.torch.cuda.device(self.device)
        return context

    def bind(self) -> None:
        """Make this GPU's context the thread's for libraries that ask the driver for it; torch and CUDA's runtime bind
        it when they first need it, which a new thread's libraries may come before."""
        self.call(self.runtime.cudaSetDevice(self.index))

    def stream(self) -> int:
        """torch's current stream on this GPU."""
        return int(self.torch._C._cuda_getCurrentRawStream(self.index))  # without an object around it

    def malloc(self, nbytes: int) -> int:
        """The address of memory outside torch's allocator: a handle of it, or a registration, names it and no more."""
        with self.current():
            return int(self.call(self.runtime.cudaMalloc(nbytes)))

    def free(self, pointer: int) -> None:
        with self.current():
            self.call(self.runtime.cudaFree(pointer))

    def copy(self, target: int, source: int, nbytes: int) -> None:
        """Between addresses on GPUs, on torch's current stream; a third of what a tensor's `copy_` costs the host."""
        self.call(self.runtime.cudaMemcpyAsync(target, source, nbytes, self._any_kind, self.stream()))

    def tensor(self, pointer: int, nbytes: int) -> Any:
        """A uint8 tensor [nbytes] over memory on this GPU."""
        return self.torch.as_tensor(_Pointer(pointer, nbytes), device=self.device)

    def leased(self, pointer: int, nbytes: int, end: Callable[[], object]) -> Any:
        """The same; `end` is called when its storage is gone, perhaps inside the garbage collector."""
        lease = _Pointer(pointer, nbytes)  # which the tensor's storage keeps
        tensor = self.torch.as_tensor(lease, device=self.device)
        lease.end = end
        return tensor

    def reads_from(self, uuid: str) -> bool:
        """Whether memory of the GPU with this UUID can be read from this one; True for one that is not visible here."""
        count = self.torch.cuda.device_count()
        uuids = [str(self.torch.cuda.get_device_properties(index).uuid) for index in range(count)]
        if uuid == self.uuid or uuid not in uuids:
            return True
        return bool(self.torch.cuda.can_device_access_peer(self.index, uuids.index(uuid)))

    def call(self, result: tuple[Any, ...]) -> Any:
        """The value of a call of CUDA's runtime; raises `TransferFailed` with CUDA's words."""
        error = result[0]
        if error != self._success:
            raise TransferFailed(f"CUDA: {self.runtime.cudaGetErrorString(error)[1].decode()}")
        return result[1] if len(result) > 1 else None


class Leases:
    """Calls back once the GPU has come past all work that was queued on its default stream when a view ended."""

    def __init__(self, gpu: Gpu) -> None:
        self._gpu = gpu
        self._ended: queue.SimpleQueue[Callable[[], object] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="omni-leases", daemon=True)
        self._thread.start()

    def end(self, then: Callable[[], object]) -> None:
        """From any thread, and inside the garbage collector."""
        call_later(self._ended.put, then)

    def view(self, pointer: int, nbytes: int, then: Callable[[], object]) -> Any:
        """A uint8 tensor [nbytes] over memory of this GPU, whose end is noticed."""
        return self._gpu.leased(pointer, nbytes, lambda: call_later(self._ended.put, then))

    def close(self) -> None:
        """Wait for the GPU once, and call back for everything that has ended."""
        self._ended.put(None)
        self._thread.join()

    def _run(self) -> None:
        sleep_precisely()
        try:
            with self._gpu.current():
                past = self._gpu.torch.cuda.Event()
            while self._wait_and_call(past):
                pass
        except Exception:  # the GPU is lost, and with it everything on it
            log.exception("slots on the GPU are no longer given back")

    def _wait_and_call(self, past: Any) -> bool:
        """What has ended since the last look, in one batch, for which an event is recorded; False at the end of all."""
        ended = [self._ended.get()]
        if ended[0] is not None:
            time.sleep(CALM)
        while not self._ended.empty():
            ended.append(self._ended.get())
        with self._gpu.current():
            # The legacy default stream comes after all work that blocking streams were given before.
            past.record(self._gpu.torch.cuda.default_stream(self._gpu.device))
            while not past.query():
                time.sleep(POLL)
        for then in ended:
            if then is not None:
                then()
        return None not in ended


def sleep_precisely() -> None:
    """Let this thread's sleeps end when they should; Linux makes them up to 50 us longer otherwise."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_TIMERSLACK, ctypes.c_ulong(1))  # nanoseconds; 0 would mean the default


class DeviceRelay(Relay[R]):
    """A way for the CUDA tensors of payloads (`DevicePart`) alone; what stays on the host goes another way.

    `get_view` returns a uint8 CUDA tensor [nbytes] on this process's GPU, ordered on torch's current stream."""

    def __init__(self, gpu: Gpu, pool: int, nbytes: int) -> None:
        """Offers from the `nbytes` of this GPU's memory at the address `pool`."""
        super().__init__(Slots(nbytes, GRAIN))
        self.gpu = gpu
        self._pool = pool

    def put_device(
        self, part: DevicePart, readers: Sequence[int], request_id: str = "", timeout: float = PUT_TIMEOUT
    ) -> RelayOperation[R]:
        """Offer a payload's CUDA tensors as they are after what torch's current stream was given. Raises like `put`."""
        produced = self._blocks.take(part)
        slot = self._take(part.nbytes, request_id, timeout) if produced is None else produced.slot
        try:
            with self.gpu.current():
                if produced is None:
                    self._write(slot, part, readers)
                return self._lend(slot, part.nbytes, readers)
        except BaseException:
            self.slots.abandon(slot)
            raise

    @abstractmethod
    def reaches(self, reader: int) -> bool:
        """Whether the peer with this epoch can read from this process's GPU."""

    def _take(self, nbytes: int, request_id: str, timeout: float) -> Slot:
        """A slot, with all that offering it will take. Raises like `put`."""
        return self.slots.take(nbytes, request_id, timeout)

    def _write(self, slot: Slot, part: DevicePart, readers: Sequence[int]) -> None:
        """Copy into a slot on torch's current stream."""
        self._copy(slot, part, 0, part.nbytes)

    def _copy(self, slot: Slot, part: DevicePart, start: int, end: int) -> None:
        """What is to lie between two offsets of a slot."""
        for offset, source, nbytes in part.sources:
            first, last = max(offset, start), min(offset + nbytes, end)
            if first < last:
                self.gpu.copy(self._pool + slot.offset + first, source + first - offset, last - first)

    @abstractmethod
    def _written(self, slot: Slot, nbytes: int) -> R:
        """Note where torch's current stream, which writes the slot, is now."""

    def _lend(self, slot: Slot, nbytes: int, readers: Sequence[int]) -> RelayOperation[R]:
        ref = self._written(slot, nbytes)
        self.slots.commit(slot, readers)
        return RelayOperation(ref, self.slots)

    def _room(self, nbytes: int, request_id: str, timeout: float) -> tuple[Slot, Any]:
        slot = self._take(nbytes, request_id, timeout)
        return slot, self.gpu.tensor(self._pool + slot.offset, slot.length)

    def _offer(self, slot: Slot, memory: Any, readers: Sequence[int]) -> RelayOperation[R]:
        with self.gpu.current():
            return self._lend(slot, memory.numel(), readers)


class _Pointer:
    """Memory that torch has not allocated, in the form in which it takes such. `end` is called at its end."""

    __slots__ = ("__cuda_array_interface__", "end")

    def __init__(self, pointer: int, nbytes: int) -> None:
        self.end: Callable[[], object] | None = None
        self.__cuda_array_interface__ = {
            "shape": (nbytes,),
            "typestr": "|u1",
            "data": (pointer, False),
            "version": 3,
            "strides": None,
        }

    def __del__(self) -> None:  # several times cheaper than a weakref.finalize
        if self.end is not None:
            self.end()
