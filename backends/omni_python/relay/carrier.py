"""A process's payloads, on their way out and in: the codec, and whichever relay the way to a peer takes."""

from __future__ import annotations

import logging
from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Any

from omni_python.proto.codec import EncodedPayload, PayloadDecoder
from omni_python.proto.errors import OmniError, Unavailable
from omni_python.proto.messages import Envelope, RelayInfo, Site
from omni_python.proto.payload import Payload
from omni_python.proto.refs import (
    CudaRef,
    DeviceRef,
    MooncakeRef,
    NcclCudaRef,
    NcclRef,
    NixlCudaRef,
    NixlRef,
    Ref,
    ShmRef,
)
from omni_python.relay.base import (
    Allocation,
    CreditFn,
    Relay,
    RelaySettings,
    RelayUnavailable,
    TransferFailed,
    open_relay,
)
from omni_python.relay.device import DeviceRelay
from omni_python.relay.slots import OutOfSlots
from omni_python.relay.ways import DEVICE_RELAYS, INLINE_LIMIT, device_way, host_identity, host_way

_RELAY_OF: dict[type[Ref], str] = {
    ShmRef: "shm",
    NixlRef: "nixl",
    MooncakeRef: "mooncake",
    NcclRef: "nccl",
    CudaRef: "cuda_shm",
    NixlCudaRef: "nixl_cuda",
    NcclCudaRef: "nccl_cuda",
}

CUDA_PATIENCE = 1.0
"""Seconds to wait for room on the GPU before a payload goes through the host instead."""

log = logging.getLogger(__name__)


def relay_of(ref: Ref) -> str:
    """The name of the relay that a payload's bytes go by."""
    return _RELAY_OF[type(ref)]


class Carrier:
    """All relays of a process. Peers are known by epoch. Thread-safe.

    `host` stands for the host's identity, for tests that set processes apart.
    """

    def __init__(self, settings: RelaySettings, epoch: int, credit: CreditFn, host: str | None = None) -> None:
        self._relays: dict[str, Relay[Any]] = {}
        self._backend = settings.backend
        for name in dict.fromkeys(("shm", settings.backend)):
            self._relays[name] = open_relay(name, settings, epoch, credit)
        gpu = ""
        if settings.gpu is not None:
            for name in filter(None, ("cuda_shm", DEVICE_RELAYS.get(settings.backend))):
                try:
                    relay = self._relays[name] = open_relay(name, settings, epoch, credit)
                except RelayUnavailable as error:
                    log.warning("tensors on the GPU go through the host: %s", error)
                else:
                    if isinstance(relay, DeviceRelay):
                        gpu = relay.gpu.uuid
        infos = tuple(RelayInfo(name, relay.announcement()) for name, relay in self._relays.items())
        self.site = Site(host_identity() if host is None else host, gpu, infos)
        self._sites: dict[int, Site] = {}
        self._routes: dict[tuple[int, ...], tuple[bool, DeviceRelay[Any] | None]] = {}
        self._by_ref = {kind: self._relays[name] for kind, name in _RELAY_OF.items() if name in self._relays}
        self.travelling = frozenset(kind for kind, relay in self._by_ref.items() if relay.travels)
        """What refs are like whose bytes have yet to come when their message has."""
        self._idle: list[PayloadDecoder] = []
        self.carried: defaultdict[str, int] = defaultdict(int)  # a Counter's items take five times as long to set
        """Payloads sent, by way."""

    def lent(self) -> Counter[int | None]:
        """Slots out, by the reader's epoch; None for those that are being written."""
        return sum((relay.slots.lent() for relay in self._relays.values()), Counter())

    @property
    def slots_in_use(self) -> int:
        return sum(len(relay.slots) for relay in self._relays.values())

    def stats(self) -> dict[str, dict[str, int]]:
        """By relay: slots out, and how often a payload waited or went beside the pool."""
        return {name: relay.stats for name, relay in self._relays.items()}

    def introduce(self, epoch: int, site: Site) -> None:
        """A peer: where it is, and how its relays are reached. Repeating it does no harm."""
        if self._sites.get(epoch) == site:
            return
        self._sites[epoch] = site
        self._routes.clear()
        for relay in self._relays.values():
            relay.slots.welcome(epoch)
        for info in site.relays:
            if (named := self._relays.get(info.relay)) is not None:
                named.introduce(epoch, info.data)

    # -- payloads

    def pack(self, payload: Payload, readers: Sequence[int], request_id: str = "") -> Envelope:
        """Encode for the processes with these epochs, which all go the same way; each must get the envelope once.

        May wait for a slot. Raises `CodecError`, `Unavailable`, and `Cancelled` when the request ends meanwhile.
        """
        same_host, on_device = self._routes.get(tuple(readers)) or self._route(readers)
        encoded = EncodedPayload(payload, None if on_device is None else on_device.gpu.index)
        if encoded.nbytes <= INLINE_LIMIT and not encoded.device.nbytes:  # what most are, by the shortest way
            self.carried["inline"] += 1
            return Envelope(encoded.type, encoded.body, encoded.inline())
        device: DeviceRef | None = None
        if on_device is not None and encoded.device.nbytes:
            try:
                device = on_device.put_device(encoded.device, readers, request_id, CUDA_PATIENCE).metadata
            except OutOfSlots:
                encoded = EncodedPayload(payload)
            else:
                self.carried[on_device.name] += 1
        way = host_way(encoded.nbytes, same_host, self._backend)
        if encoded.nbytes or device is None:
            self.carried[way] += 1
        if way == "inline":
            return Envelope(encoded.type, encoded.body, encoded.inline(), device=device)
        try:
            ref = self._relays[way].put(encoded, readers, request_id).metadata
        except BaseException:
            if device is not None:
                self._take_back(device, readers)
            raise
        return Envelope(encoded.type, encoded.body, ref=ref, device=device)

    def alloc(self, nbytes: int, readers: Sequence[int], request_id: str = "", on_gpu: bool = False) -> Allocation:
        """Memory to produce a tensor in: a payload that consists of it is then sent to these processes uncopied.

        Raises `Unavailable` where it is to be `on_gpu`, and tensors there reach these processes through the host alone.
        """
        same_host, on_device = self._routes.get(tuple(readers)) or self._route(readers)
        if on_gpu:
            if on_device is None:
                raise Unavailable("tensors on the GPU go to the receiving process through the host")
            return on_device.alloc(nbytes, request_id)
        return self._relays[host_way(max(nbytes, INLINE_LIMIT + 1), same_host, self._backend)].alloc(nbytes, request_id)

    def travels(self, envelope: Envelope | None) -> bool:
        """Whether `unpack` has to wait until the bytes have come."""
        return envelope is not None and (
            type(envelope.ref) in self.travelling or type(envelope.device) in self.travelling
        )

    def unpack(self, sender: int, envelope: Envelope) -> Payload:
        """The payload; its tensors may be views of the sender's slot, which is credited when they are gone.

        Raises `CodecError`, and `TransferFailed` when the bytes cannot be had; slots are credited in any case.
        """
        device = None if envelope.device is None else self._device_view(sender, envelope)
        buffer = envelope.inline if envelope.ref is None else self._view(sender, envelope.ref)
        try:
            decoder = self._idle.pop()
        except IndexError:
            decoder = PayloadDecoder()
        try:
            return decoder.decode(envelope.type, envelope.body, buffer, device)
        finally:
            self._idle.append(decoder)

    def _device_view(self, sender: int, envelope: Envelope) -> Any:
        """The envelope's tensors on the GPU; where they cannot be read, those on the host are given back, too."""
        assert envelope.device is not None
        try:
            return self._view(sender, envelope.device)
        except BaseException:
            if envelope.ref is not None:
                self._decline(sender, envelope.ref)
            raise

    def _view(self, sender: int, ref: Ref) -> Any:
        """What a slot holds; one that cannot be read is given back."""
        try:
            return self._relay(ref).get_view(sender, ref)
        except Exception as error:
            self._decline(sender, ref)
            if isinstance(error, OmniError):
                raise
            raise TransferFailed(f"a payload could not be fetched: {error}") from error

    def decline(self, sender: int, envelope: Envelope | None) -> None:
        """Give a payload's slots back unread."""
        for ref in envelope.refs if envelope is not None else ():
            self._decline(sender, ref)

    def take_back(self, envelope: Envelope | None, readers: Sequence[int]) -> None:
        """A payload that could not be sent to these readers, who will never credit it."""
        for ref in envelope.refs if envelope is not None else ():
            self._take_back(ref, readers)

    # -- lifetimes

    def credit(self, relay: str, generation: int, reader: int) -> None:
        if (known := self._relays.get(relay)) is not None:
            known.credit(generation, reader)

    def cleanup(self, request_id: str) -> None:
        """A request is over: whoever waits for a slot for it stops."""
        for relay in self._relays.values():
            relay.cleanup(request_id)

    def forget(self, epoch: int) -> None:
        """A peer is dead, says the coordinator: what it held comes back."""
        self._sites.pop(epoch, None)
        self._routes.clear()
        for relay in self._relays.values():
            relay.forget(epoch)

    def close(self) -> None:
        for relay in self._relays.values():
            relay.close()

    def _route(self, readers: Sequence[int]) -> tuple[bool, DeviceRelay[Any] | None]:
        """Find whether all readers are on this host, and what takes tensors on a GPU to all of them."""
        if not readers:
            raise Unavailable("there is nobody to send to")
        try:
            sites = [self._sites[reader] for reader in readers]
        except KeyError:
            raise Unavailable("the receiving process is gone") from None
        same_host = all(site.host == self.site.host for site in sites)
        on_device = self._relays.get(device_way(same_host, self._backend) or "")
        if not (isinstance(on_device, DeviceRelay) and all(on_device.reaches(reader) for reader in readers)):
            on_device = None
        route = self._routes[tuple(readers)] = same_host, on_device
        return route

    def _relay(self, ref: Ref) -> Relay[Any]:
        try:
            return self._by_ref[type(ref)]
        except KeyError:
            raise TransferFailed(f"a payload came over {relay_of(ref)}, which this process does not run") from None

    def _decline(self, sender: int, ref: Ref) -> None:
        if (relay := self._by_ref.get(type(ref))) is not None:
            relay.decline(sender, ref)

    def _take_back(self, ref: Ref, readers: Sequence[int]) -> None:
        for reader in readers:
            self._relay(ref).credit(ref.generation, reader)
