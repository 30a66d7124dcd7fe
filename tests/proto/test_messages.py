"""Messages from a socket: whatever the bytes, they are a message within its bounds or refused."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from omni_python.proto.messages import DataReadyMessage, Envelope, Peer, PeersMessage, RelayInfo, Site, decode_message
from omni_python.proto.messages import encode_message as encode
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

REFS: list[Ref] = [
    ShmRef(3, 100, 42, 7, 1 << 20, 4096, True),
    NixlRef(4, 1 << 30, 0x7F00_0000_0000, b"region"),
    MooncakeRef(5, 0, 1),
    NcclRef(6, 17),
    CudaRef(7, 1 << 20, 65536, 63),
    NixlCudaRef(8, 1 << 20, 0x7F00_0000_0000),
    NcclCudaRef(9, 1 << 20),
]


def message(ref: Ref) -> DataReadyMessage:
    device = ref if isinstance(ref, DeviceRef) else CudaRef(8, 1, 2, 3)
    return DataReadyMessage(1, "r", "a", "b", Envelope("p.T", b"body", b"inline", ref, device), 5)


@pytest.mark.parametrize("ref", REFS, ids=lambda ref: type(ref).__name__)
def test_every_reference_comes_back(ref: Ref) -> None:
    assert decode_message(encode(message(ref))) == message(ref)


def test_sites_come_back() -> None:
    site = Site("host", "GPU-1", (RelayInfo("shm"), RelayInfo("nixl", b"\x00\xff")))
    peers = PeersMessage(1, 2, 3, "address", [Peer("p", ["a"], 4, 5, "there", site)], site)
    assert decode_message(encode(peers)) == peers


@pytest.mark.parametrize(
    "ref",
    [
        ["shm", -1, 100, 42, 7, 4096, 0],  # generation
        ["shm", 3, -100, 42, 7, 4096, 0],  # nbytes
        ["shm", 3, 1 << 41, 42, 7, 4096, 0],
        ["shm", 3, 100, 42, -7, 4096, 0],  # a descriptor
        ["nixl", 3, 100, -8],  # an address
        ["nixl", 3, 100, 1 << 63],
        ["nixl", 3, 100, 8, "text"],
        ["pickle", 3, 100],
        ["cuda", 3, 100, 0],  # its event is missing
        [],
        7,
    ],
    ids=str,
)
def test_references_beyond_their_bounds_are_refused(ref: object) -> None:
    raw = msgspec.msgpack.decode(encode(message(REFS[0])))
    raw[5][3] = ref
    with pytest.raises(msgspec.MsgspecError):
        decode_message(msgspec.msgpack.encode(raw))


@settings(max_examples=300)
@given(st.data())
def test_damaged_messages_never_do_more_than_fail(data: st.DataObject) -> None:
    frame = bytearray(encode(message(data.draw(st.sampled_from(REFS)))))
    for _ in range(data.draw(st.integers(0, 4))):
        frame[data.draw(st.integers(0, len(frame) - 1))] = data.draw(st.integers(0, 255))
    try:
        decoded = decode_message(bytes(frame[: data.draw(st.integers(0, len(frame)))]))
    except msgspec.MsgspecError:
        return
    for ref in decoded.payload.refs if isinstance(decoded, DataReadyMessage) and decoded.payload else ():
        assert 0 <= ref.nbytes <= 1 << 40 and ref.generation >= 0
