"""NIXL from GPU to GPU: tensors stay in GPU memory on both sides, over NVLink (UCX's cuda_ipc) or RDMA.

As `reads` does on the host: one registered allocation a process, half of it to offer from and half to land in. A read
is not ordered by any stream, so that the sender waits for its own stream before it offers.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from omni_python.proto.refs import NixlCudaRef
from omni_python.relay.base import CreditFn, RelayOperation, RelaySettings
from omni_python.relay.device import GRAIN, DeviceRelay, Gpu, Leases
from omni_python.relay.nixl_agent import NixlAgent
from omni_python.relay.slots import OutOfSlots, Slot, Slots


class NixlCudaRelay(DeviceRelay[NixlCudaRef]):
    name = "nixl_cuda"

    def __init__(self, settings: RelaySettings, epoch: int, credit: CreditFn) -> None:
        gpu = Gpu(self.name, settings.gpu)
        super().__init__(gpu, gpu.malloc(2 * settings.pool_bytes), settings.pool_bytes)
        self._epoch = epoch
        self._credit = credit
        self._landing = Slots(settings.pool_bytes, GRAIN)
        self._agent = NixlAgent(epoch, self.slots, self.credit, "VRAM", self.gpu.index, self.gpu.bind)
        self._handle = self._agent.register(self._pool, 2 * settings.pool_bytes)
        self._announcement = self._agent.start()
        self._leases = Leases(self.gpu)

    def announcement(self) -> bytes:
        return self._announcement

    def introduce(self, epoch: int, announcement: bytes) -> None:
        self._agent.introduce(epoch, announcement)

    def reaches(self, reader: int) -> bool:
        return self._agent.knows(reader)

    def _written(self, slot: Slot, nbytes: int) -> NixlCudaRef:
        written = self.gpu.torch.cuda.Event(blocking=True)
        written.record()
        written.synchronize()
        return NixlCudaRef(slot.generation, nbytes, self._pool + slot.offset)

    def _lend(self, slot: Slot, nbytes: int, readers: Sequence[int]) -> RelayOperation[NixlCudaRef]:
        operation = super()._lend(slot, nbytes, readers)
        self._agent.offered()
        return operation

    # -- reading

    def get_view(self, sender: int, ref: NixlCudaRef) -> Any:
        try:
            slot = self._landing.take(ref.nbytes)
        except OutOfSlots:
            return self._read_aside(sender, ref)
        pointer = self._pool + self.slots.capacity + slot.offset
        try:
            self._agent.read(sender, ref.generation, ref.nbytes, ref.address, pointer)
        except BaseException:
            self._landing.abandon(slot)
            raise
        self._landing.commit(slot, [self._epoch])
        free = partial(self._landing.credit, slot.generation, self._epoch)
        view = self._leases.view(pointer, ref.nbytes, free)
        return view.clone() if slot.pressed else view

    def _read_aside(self, sender: int, ref: NixlCudaRef) -> Any:
        """What is held of earlier reads fills the landing half: read to memory of its own."""
        pointer = self.gpu.malloc(ref.nbytes)
        handle = None
        try:
            handle = self._agent.register(pointer, ref.nbytes)
            self._agent.read(sender, ref.generation, ref.nbytes, ref.address, pointer)
        except BaseException:
            self.gpu.free(pointer)
            raise
        finally:
            if handle is not None:
                self._agent.deregister(handle)
        return self._leases.view(pointer, ref.nbytes, partial(self.gpu.free, pointer))

    def decline(self, sender: int, ref: NixlCudaRef) -> None:
        self._credit(sender, self.name, ref.generation)

    # -- lifetimes

    def forget(self, epoch: int) -> None:
        super().forget(epoch)
        self._agent.forget(epoch)

    def close(self) -> None:
        self.slots.close()
        self._landing.close()
        self._leases.close()
        self._agent.close()
        self._agent.deregister(self._handle)
