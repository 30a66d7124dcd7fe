"""NIXL: one-sided reads over whatever UCX finds, from RDMA to shared memory and TCP. Memory of the host; `nixl_cuda` is
for that of a GPU."""

from __future__ import annotations

from omni_python.proto.refs import NixlRef
from omni_python.relay.base import CreditFn, RelaySettings
from omni_python.relay.nixl_agent import NixlAgent
from omni_python.relay.reads import ReadRelay, Region
from omni_python.relay.slots import Slot


class NixlRelay(ReadRelay[NixlRef]):
    name = "nixl"

    def __init__(self, settings: RelaySettings, epoch: int, credit: CreditFn) -> None:
        super().__init__(settings, epoch, credit)
        self._agent = NixlAgent(epoch, self.slots, self.credit)
        self._register(self._region)
        self._announcement = self._agent.start()

    def announcement(self) -> bytes:
        return self._announcement

    def introduce(self, epoch: int, announcement: bytes) -> None:
        self._agent.introduce(epoch, announcement)

    def forget(self, epoch: int) -> None:
        super().forget(epoch)
        self._agent.forget(epoch)

    def close(self) -> None:
        self.slots.close()
        self._landing.close()
        self._agent.close()
        self._deregister(self._region)

    def _register(self, region: Region) -> None:
        region.handle = self._agent.register(region.address, len(region.memory))

    def _deregister(self, region: Region) -> None:
        self._agent.deregister(region.handle)

    def _ref(self, slot: Slot, nbytes: int, address: int) -> NixlRef:
        self._agent.offered()
        region = b"" if slot.extra is None else self._agent.metadata_of(slot.extra.handle)
        return NixlRef(slot.generation, nbytes, address, region)

    def _read(self, sender: int, ref: NixlRef, address: int) -> None:
        self._agent.read(sender, ref.generation, ref.nbytes, ref.address, address, ref.region)
