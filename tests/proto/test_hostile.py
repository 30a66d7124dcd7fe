"""The codec against bytes made to hurt: nothing but a payload or a `CodecError` comes of them, in bounded memory."""

from __future__ import annotations

import tracemalloc
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from omni_python.proto.codec import MAX_TENSORS, CodecError, EncodedPayload, PayloadDecoder
from omni_python.proto.messages import AbortMessage, ControlMessage, decode_message, encode_message
from omni_python.proto.payload import Payload

Ext = msgspec.msgpack.Ext
BUFFER = np.zeros(4096, np.uint8)


class Leaf(msgspec.Struct, array_like=True):
    name: str
    tensor: torch.Tensor | None = None


class Node(msgspec.Struct, array_like=True):
    """May hold itself."""

    leaves: list[Leaf] = []
    children: list[Node] = []


class Hostile(Payload):
    tree: Node | None = None
    array: np.ndarray | None = None
    named: dict[str, torch.Tensor] = {}
    anything: Any = None


def decode(body: bytes, buffer: np.ndarray = BUFFER) -> Payload | None:
    try:
        decoded = PayloadDecoder().decode("test_hostile.Hostile", body, buffer)
    except CodecError:
        return None
    assert isinstance(decoded, Hostile)
    return decoded


numbers = st.one_of(st.integers(-2, 20), st.integers(-(2**63), 2**64 - 1), st.sampled_from([64, 128, 4096, 1 << 40]))
headers = st.one_of(
    st.tuples(st.integers(-1, 18), st.lists(numbers, max_size=20), numbers, numbers, st.booleans()).map(
        msgspec.msgpack.encode
    ),
    st.binary(max_size=40),
)
extensions = st.builds(Ext, st.one_of(st.just(1), st.integers(-128, 127)), headers)
scalars = st.one_of(
    st.none(), st.booleans(), numbers, st.floats(), st.text(max_size=8), st.binary(max_size=8), extensions
)
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(max_size=4), inner, max_size=5),
    max_leaves=30,
)
leaves = st.tuples(st.text(max_size=3), scalars)
nodes = st.recursive(
    st.tuples(st.lists(leaves, max_size=3), st.just([])),
    lambda inner: st.tuples(st.lists(leaves, max_size=3), st.lists(inner, max_size=4)),
    max_leaves=20,
)
payloads = st.tuples(
    st.one_of(nodes, values),
    scalars,
    st.one_of(st.dictionaries(st.text(max_size=4), extensions, max_size=5), values),
    values,
)


@settings(max_examples=400)
@given(payloads, st.data())
def test_hostile_nests_are_payloads_or_refused(value: Any, data: st.DataObject) -> None:
    body = msgspec.msgpack.encode(value)
    decode(body)
    decode(body[: data.draw(st.integers(0, len(body)))])


@settings(max_examples=300)
@given(st.binary(max_size=300))
def test_any_bytes_are_a_payload_or_refused(body: bytes) -> None:
    decode(body)


@settings(max_examples=200)
@given(st.integers(0, 17), st.lists(st.integers(0, 70), max_size=4), st.integers(0, 80).map(lambda n: n * 64))
def test_what_is_accepted_lies_inside_its_buffer(dtype: int, shape: list[int], offset: int) -> None:
    """With the byte count that fits, whatever the rest says."""
    for itemsize in (1, 2, 4, 8, 16):
        nbytes = int(np.prod(shape, dtype=int)) * itemsize
        body = msgspec.msgpack.encode(
            [None, None, {"t": Ext(1, msgspec.msgpack.encode((dtype, shape, offset, nbytes)))}]
        )
        decoded = decode(body)
        if decoded is None:
            continue
        assert isinstance(decoded, Hostile)
        tensor = decoded.named["t"]
        assert list(tensor.shape) == shape and tensor.numel() * tensor.element_size() == nbytes
        if nbytes:
            assert tensor.data_ptr() == BUFFER.ctypes.data + offset and offset + nbytes <= len(BUFFER)


@pytest.mark.parametrize("depth", [100, 1000, 100_000])
@pytest.mark.parametrize("opening", [b"\x92\x90\x91", b"\x91", b"\x81\xa0"], ids=["nodes", "lists", "maps"])
def test_deep_nests_end_in_an_error_and_not_the_process(opening: bytes, depth: int) -> None:
    for start in (b"\x91", b"\x94\xc0\xc0\x80"):  # as the tree, and as anything
        decode(start + opening * depth)
        decode(start + opening * depth + b"\x92\x90\x90")
        decode(start + opening * depth + b"\xc0")


@pytest.mark.parametrize(
    "claim",
    [
        b"\xdd\xff\xff\xff\xff",  # a list of four thousand million
        b"\xdf\xff\xff\xff\xff",  # a map
        b"\xdb\xff\xff\xff\xff",  # text
        b"\xc6\xff\xff\xff\xff",  # bytes
        b"\xc9\xff\xff\xff\xff\x01",  # an extension
    ],
)
def test_claimed_lengths_take_no_memory(claim: bytes) -> None:
    tracemalloc.start()
    for start in (b"\x91", b"\x93\xc0\xc0", b"\x94\xc0\xc0\x80"):
        assert decode(start + claim) is None
    assert tracemalloc.get_traced_memory()[1] < 1 << 20
    tracemalloc.stop()


def test_many_small_tensors_are_bounded() -> None:
    one = Ext(1, msgspec.msgpack.encode((0, (0,), 0, 0)))
    tensors = [["x", one]] * (MAX_TENSORS + 1)
    assert decode(msgspec.msgpack.encode([[tensors, []]])) is None
    assert decode(msgspec.msgpack.encode([None, None, {str(n): one for n in range(MAX_TENSORS + 1)}])) is None


def test_extensions_where_anything_may_be_stay_what_they_are() -> None:
    """No tensors are made of them, so nothing that they say is believed."""
    claims = [Ext(1, msgspec.msgpack.encode((0, (1 << 40,), 0, 1 << 40))), Ext(7, b"x")]
    decoded = decode(msgspec.msgpack.encode([None, None, {}, claims]))
    assert isinstance(decoded, Hostile)
    assert [(type(item), item.code, item.data) for item in decoded.anything] == [(Ext, e.code, e.data) for e in claims]


def test_a_payload_that_holds_itself_is_refused_by_its_sender() -> None:
    node = Node()
    node.children.append(node)
    with pytest.raises(CodecError, match="cannot be sent"):
        EncodedPayload(Hostile(node))


@settings(max_examples=300)
@given(
    st.one_of(
        st.binary(max_size=200), values.map(msgspec.msgpack.encode), st.sampled_from([b"", b"\xc1", b"\x91" * 9999])
    )
)
def test_any_frame_is_a_message_or_refused(frame: bytes) -> None:
    try:
        message = decode_message(frame)
    except msgspec.MsgspecError:
        return
    assert isinstance(message, ControlMessage)


@pytest.mark.parametrize("opening", [b"\x91", b"\x81\xa0"])
def test_deep_frames_are_refused(opening: bytes) -> None:
    with pytest.raises(msgspec.MsgspecError):
        decode_message(opening * 100_000)
    frame = encode_message(AbortMessage(1, "r"))
    fields = frame[0] & 0x0F
    with pytest.raises(msgspec.MsgspecError):  # in a field that this version does not know
        decode_message(bytes([0x90 + fields + 1]) + frame[1:] + opening * 100_000)
