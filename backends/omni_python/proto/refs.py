"""Where a payload's tensors lie, as a message says it: one small struct a relay backend. Nothing in them can run code;
every number is bounded here and checked against the memory that it points into by the relay that reads it."""

from __future__ import annotations

from typing import Annotated

import msgspec

Size = Annotated[int, msgspec.Meta(ge=0, le=1 << 40)]
"""Bytes: up to a tebibyte."""

Number = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]
Address = Number


class _Ref(msgspec.Struct, array_like=True, frozen=True, tag=True, gc=False):
    """`generation` tells one use of a slot from the next, and is what a credit names."""

    generation: Number
    nbytes: Size


class ShmRef(_Ref, frozen=True, tag="shm"):
    """A slot of the sender's shared memory.

    `pid` and `fd` name the memory (`/proc/<pid>/fd/<fd>`), `size` is the whole segment's. `pressed`: the pool is
    running low, so copy out and give the slot back.
    """

    pid: Number
    fd: Number
    size: Size
    offset: Size
    pressed: bool = False


class NixlRef(_Ref, frozen=True, tag="nixl"):
    """Registered memory of the sender's NIXL agent. `region`: what a reader must know of memory outside the pool."""

    address: Address
    region: bytes = b""


class MooncakeRef(_Ref, frozen=True, tag="mooncake"):
    """Registered memory of the sender's Mooncake engine."""

    address: Address


class NcclRef(_Ref, frozen=True, tag="nccl"):
    """Bytes that the sender sends through torch.distributed, in the order of its messages to the reader."""


class CudaRef(_Ref, frozen=True, tag="cuda"):
    """A slot of the sender's pool on its GPU. `event` is the index of the interprocess event that marks it written.
    `pressed` as in `ShmRef`. `parts` are the events of all parts but the last of what is written part by part."""

    offset: Size
    event: Number
    pressed: bool = False
    parts: Annotated[tuple[Number, ...], msgspec.Meta(max_length=15)] = ()


class NixlCudaRef(_Ref, frozen=True, tag="nixl_cuda"):
    """Registered memory of the GPU of the sender's NIXL agent."""

    address: Address


class NcclCudaRef(_Ref, frozen=True, tag="nccl_cuda"):
    """Bytes on the sender's GPU that it sends over NCCL when it is asked for them."""


DeviceRef = CudaRef | NixlCudaRef | NcclCudaRef
Ref = ShmRef | NixlRef | MooncakeRef | NcclRef | DeviceRef
