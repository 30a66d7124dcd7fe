"""What every way of moving tensors between processes offers, and the backends by name.

A sender `put`s bytes and sends the operation's `metadata` in its message; only then may it wait for the operation. A
reader `get`s them into its own memory, or takes a `get_view`, which copies nothing where the backend need not. Every
reader credits a slot exactly once, read or declined; the credit travels as a message of the control plane unless the
backend has a faster way.
"""

from __future__ import annotations

import importlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, Protocol, TypeVar

import numpy as np

from omni_python.proto.codec import address_of
from omni_python.proto.errors import OmniError
from omni_python.proto.refs import Ref
from omni_python.relay.slots import Slot, Slots

PUT_TIMEOUT = 30.0
"""Seconds that a payload waits for a slot before its request fails."""

R = TypeVar("R", bound=Ref)


class RelayUnavailable(OmniError):
    """A backend cannot run here; the message says what to install."""


class TransferFailed(OmniError):
    """Bytes could not be fetched, mostly because their sender is gone."""


@dataclass(frozen=True)
class RelaySettings:
    """`backend` carries what no way within the host does. `pool_bytes` is the size of each pool. `gpu` is the index of
    the process's GPU, None to keep tensors on the host. `rank` orders the members of a collective backend."""

    backend: str = "shm"
    pool_bytes: int = 64 << 20
    gpu: int | None = None
    rank: int | None = None


class Placed(Protocol):
    """Bytes that may already lie where they are to be sent from."""

    nbytes: int

    def place(self) -> int:
        """The address at which they lie already just as they would be written; 0 where they do not."""


class Source(Placed, Protocol):
    """Bytes that know how to write themselves, for example an `EncodedPayload`."""

    def write_to(self, buffer: np.ndarray) -> None: ...


class _Blocks:
    """What is allocated and not committed, found again by where it is. Thread-safe, as a dict is."""

    def __init__(self) -> None:
        self._open: dict[int, Allocation] = {}  # by address

    def add(self, allocation: Allocation) -> Allocation:
        self._open[allocation.address] = allocation
        return allocation

    def take(self, source: Placed) -> Allocation | None:
        """The allocation that holds all of a source where it would be written to anyway; it is open no more."""
        if not self._open:
            return None
        address = source.place()
        allocation = self._open.get(address)
        if allocation is None or source.nbytes > allocation.slot.length:
            return None
        return self._open.pop(address, None)

    def discard(self, allocation: Allocation) -> None:
        if self._open.get(allocation.address) is allocation:
            del self._open[allocation.address]


CreditFn = Callable[[int, str, int], object]
"""`(sender's epoch, relay, generation)`: called once for every slot that was read or declined; from any thread, even
inside the garbage collector, so it must only queue."""


@dataclass(slots=True, eq=False)  # not frozen: making one is part of every transfer, and costs three times as much then
class RelayOperation(Generic[R]):
    """A transfer under way. `metadata` is what the reader needs."""

    metadata: R
    _slots: Slots | None = None
    """The sender's, of a put; a get is over when it returns."""

    def wait_for_completion(self, timeout: float | None = None) -> bool:
        """Of a put: whether all readers are done. Of a get: whether the bytes are there."""
        return self._slots is None or self._slots.wait_free(self.metadata.generation, timeout)


@dataclass(slots=True, eq=False)
class Allocation:
    """A slot to produce in: write to `memory` (uint8 [nbytes], an array, or on a GPU a tensor, which torch's current
    stream may write to), then commit, and do not write any more."""

    memory: Any
    slot: Slot
    address: int
    """Where the memory is."""


class Relay(ABC, Generic[R]):
    """One process's end of a backend, for sending and reading. Thread-safe."""

    name: ClassVar[str]

    def __init__(self, slots: Slots) -> None:
        self.slots = slots
        self._blocks = _Blocks()

    @property
    def travels(self) -> bool:
        """Whether `get_view` has to wait for bytes, and therefore must not run where messages are received."""
        return True

    def announcement(self) -> bytes:
        """What peers need to read from this process, once per epoch."""
        return b""

    def introduce(self, epoch: int, announcement: bytes) -> None:
        """A peer, before anything is read from it. Repeating it does no harm."""

    # -- sending

    def put(
        self, source: Source, readers: Sequence[int], request_id: str = "", timeout: float = PUT_TIMEOUT
    ) -> RelayOperation[R]:
        """Offer bytes to the readers with these epochs; each must get the metadata once for each time it is named.

        Raises `OutOfSlots` after `timeout` seconds without room, `Cancelled` when the request ends meanwhile.
        """
        produced = self._blocks.take(source)
        if produced is not None:
            return self.commit(produced, readers)
        slot, memory = self._room(source.nbytes, request_id, timeout)
        try:
            source.write_to(memory)
            return self._offer(slot, memory[: source.nbytes], readers)
        except BaseException:
            self.slots.abandon(slot)
            raise

    def alloc(self, nbytes: int, request_id: str = "", timeout: float = PUT_TIMEOUT) -> Allocation:
        """Room to produce in, so that nothing has to be copied: a `put` whose source lies there only commits it.

        Raises like `put`. It is the producer's until then; `release` it if nothing comes of it.
        """
        slot, memory = self._room(nbytes, request_id, timeout)
        address = address_of(memory) if isinstance(memory, np.ndarray) else memory.data_ptr()
        return self._blocks.add(Allocation(memory[:nbytes], slot, address))

    def commit(self, allocation: Allocation, readers: Sequence[int]) -> RelayOperation[R]:
        """Offer what was written to an allocation, which is dropped if that fails."""
        self._blocks.discard(allocation)
        try:
            return self._offer(allocation.slot, allocation.memory, readers)
        except BaseException:
            self.slots.abandon(allocation.slot)
            raise

    def release(self, allocation: Allocation) -> None:
        """Drop an allocation; nothing happens to one that was committed."""
        self._blocks.discard(allocation)
        self.slots.abandon(allocation.slot)

    @abstractmethod
    def _room(self, nbytes: int, request_id: str, timeout: float) -> tuple[Slot, Any]:
        """A slot and its memory, uint8 [at least nbytes]."""

    @abstractmethod
    def _offer(self, slot: Slot, memory: Any, readers: Sequence[int]) -> RelayOperation[R]:
        """Commit a slot in which `memory` is written."""

    # -- reading

    @abstractmethod
    def get_view(self, sender: int, ref: R) -> Any:
        """The bytes, uint8 [nbytes], read-only. Raises `TransferFailed`; then nothing was credited."""

    def get(self, sender: int, ref: R, dest: np.ndarray, request_id: str = "") -> RelayOperation[R]:
        """Copy the bytes into `dest`, uint8 [at least nbytes], and credit the slot."""
        dest[: ref.nbytes] = self.get_view(sender, ref)
        return RelayOperation(ref)

    @abstractmethod
    def decline(self, sender: int, ref: R) -> None:
        """Give bytes back unread."""

    # -- lifetimes

    def credit(self, generation: int, reader: int) -> bool:
        """The reader with this epoch is done with a slot, or never got it; False if that was known."""
        return self.slots.credit(generation, reader)

    def cleanup(self, request_id: str) -> None:
        """A request is over: whoever waits for room for it stops. What readers hold, they still credit."""
        self.slots.cleanup(request_id)

    def forget(self, epoch: int) -> None:
        """A peer is dead: what it held comes back, and its memory is let go. Views of it stay valid."""
        self.slots.forget(epoch)

    @abstractmethod
    def close(self) -> None:
        """Wake those who wait and let go of everything; readers keep what they have."""

    @property
    def stats(self) -> dict[str, int]:
        """`slots` out now; `waits` for room and `extras` (slots beside the pool) so far."""
        return {"slots": len(self.slots), "waits": self.slots.waits, "extras": self.slots.extras}


BACKENDS = {
    "shm": "omni_python.relay.shm:ShmRelay",
    "nixl": "omni_python.relay.nixl:NixlRelay",
    "mooncake": "omni_python.relay.mooncake:MooncakeRelay",
    "nccl": "omni_python.relay.nccl:NcclRelay",
    "cuda_shm": "omni_python.relay.cuda_shm:CudaShmRelay",
    "nixl_cuda": "omni_python.relay.nixl_cuda:NixlCudaRelay",
    "nccl_cuda": "omni_python.relay.nccl_cuda:NcclCudaRelay",
}
"""Imported when used: each may need a library of its own."""


def open_relay(name: str, settings: RelaySettings, epoch: int, credit: CreditFn) -> Relay[Any]:
    """This process's end of a backend. Raises `RelayUnavailable` where its library is missing."""
    module, _, cls = BACKENDS[name].partition(":")
    relay: Relay[Any] = getattr(importlib.import_module(module), cls)(settings, epoch, credit)
    return relay
