"""The codec: everything that may cross comes back equal, everything else is refused."""

from __future__ import annotations

import os

import msgspec
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from omni_python.proto.codec import ALIGNMENT, MAX_BODY, MAX_TENSORS, CodecError, EncodedPayload, PayloadDecoder
from omni_python.proto.payload import Payload, UnknownPayload


class Inner(msgspec.Struct):
    label: str
    tensor: torch.Tensor


class Everything(Payload):
    tensor: torch.Tensor | None = None
    array: np.ndarray | None = None
    named: dict[str, torch.Tensor] = {}
    listed: list[Inner] = []
    text: str = ""
    raw: bytes = b""
    number: float = 0.0
    flag: bool = False
    anything: int | str | None = None


def round_trip(payload: Everything) -> Everything:
    encoded = EncodedPayload(payload)
    buffer = np.full(encoded.nbytes, 0xAA, np.uint8)
    encoded.write_to(buffer)
    decoded = PayloadDecoder().decode(encoded.type, encoded.body, buffer)
    inline = np.frombuffer(encoded.inline(), np.uint8)
    again = PayloadDecoder().decode(encoded.type, encoded.body, inline)
    assert isinstance(decoded, Everything) and isinstance(again, Everything)
    if payload.tensor is not None:
        assert again.tensor is not None
        assert torch.equal(as_bytes(again.tensor), as_bytes(payload.tensor))
    return decoded


def as_bytes(tensor: torch.Tensor) -> torch.Tensor:
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor.resolve_conj())
    return tensor.contiguous().reshape(-1).view(torch.uint8)


DTYPES = [
    torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.uint16, torch.uint32, torch.uint64,
    torch.float16, torch.float32, torch.float64, torch.bool, torch.bfloat16, torch.complex64, torch.complex128,
    torch.float8_e4m3fn, torch.float8_e5m2,
]  # fmt: skip


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(), (0,), (1,), (3, 0, 2), (7, 5), (2, 3, 4)], ids=str)
def test_every_dtype_and_shape_comes_back(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    raw = torch.from_numpy(np.frombuffer(os.urandom(16 * 64), np.uint8).copy())
    count = int(np.prod(shape, dtype=int))
    flat = raw.bool() if dtype is torch.bool else raw.view(dtype)
    tensor = flat[:count].reshape(shape)
    decoded = round_trip(Everything(tensor=tensor, array=np.arange(3), named={"other": torch.ones(2)})).tensor
    assert decoded is not None
    assert (decoded.dtype, decoded.shape) == (tensor.dtype, tensor.shape)
    assert torch.equal(as_bytes(decoded), as_bytes(tensor))


def test_views_do_not_copy() -> None:
    encoded = EncodedPayload(Everything(tensor=torch.randn(100), array=np.arange(7.0)))
    buffer = np.zeros(encoded.nbytes, np.uint8)
    encoded.write_to(buffer)
    decoded = PayloadDecoder().decode(encoded.type, encoded.body, buffer)
    assert isinstance(decoded, Everything)
    assert decoded.tensor is not None and decoded.array is not None
    assert decoded.tensor.data_ptr() == buffer.ctypes.data
    assert np.shares_memory(decoded.array, buffer)


def test_strided_and_conjugated_tensors_are_sent_by_value() -> None:
    tensor = torch.randn(6, 4).t()[::2]
    conjugated = torch.randn(3, dtype=torch.complex64).conj()
    for sent in (tensor, conjugated):
        received = round_trip(Everything(tensor=sent)).tensor
        assert received is not None and torch.equal(received, sent)


@settings(max_examples=60)
@given(
    st.text(), st.binary(max_size=300), st.floats(allow_nan=False), st.booleans(),
    st.lists(st.integers(0, 40), max_size=5), st.one_of(st.none(), st.integers(-(2**63), 2**63 - 1), st.text()),
)  # fmt: skip
def test_nested_values_come_back(text, raw, number, flag, sizes, anything) -> None:  # type: ignore[no-untyped-def]
    inner = [Inner(str(size), torch.rand(size)) for size in sizes]
    payload = Everything(listed=inner, text=text, raw=raw, number=number, flag=flag, anything=anything)
    decoded = round_trip(payload)
    assert (decoded.text, decoded.raw, decoded.number, decoded.flag, decoded.anything) == (
        text,
        raw,
        number,
        flag,
        anything,
    )
    assert [i.label for i in decoded.listed] == [i.label for i in inner]
    assert all(torch.equal(a.tensor, b.tensor) for a, b in zip(decoded.listed, inner, strict=True))


@pytest.mark.parametrize(
    "value", [object(), os, np.array(["a"]), np.float32(1), lambda: 0], ids=lambda value: type(value).__name__
)
def test_other_objects_are_refused(value: object) -> None:
    payload = Everything()
    payload.tensor = value  # type: ignore[assignment]
    with pytest.raises(CodecError, match="Everything cannot be sent"):
        EncodedPayload(payload)


def encoded_header(dtype: int, shape: tuple[int, ...], offset: int, nbytes: int) -> bytes:
    header = msgspec.msgpack.encode((dtype, shape, offset, nbytes))
    return msgspec.msgpack.encode([msgspec.msgpack.Ext(1, header)])


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (encoded_header(9, (1 << 40,), 0, 4 << 40), "beyond its buffer"),
        (encoded_header(9, (4,), 64, 16), "beyond its buffer"),
        (encoded_header(9, (4,), -16, 16), "beyond its buffer"),
        (encoded_header(9, (4,), 8, 16), "not aligned"),
        (encoded_header(9, (-4,), 0, -16), "impossible shape"),
        (encoded_header(9, (1,) * 17, 0, 4), "impossible shape"),
        (encoded_header(99, (1,), 0, 4), "unknown dtype"),
        (encoded_header(-1, (1,), 0, 4), "unknown dtype"),
        (msgspec.msgpack.encode([msgspec.msgpack.Ext(7, b"")]), "unknown extension"),
        (msgspec.msgpack.encode([msgspec.msgpack.Ext(1, b"\xc1")]), "malformed"),
        (msgspec.msgpack.encode([12]), "expected a tensor"),
        (msgspec.msgpack.encode({"tensor": None}), "malformed"),
        (b"\xc1", "malformed"),
        (b"", "malformed"),
        (b"\x91" * 100_000, "malformed"),
    ],
)
def test_hostile_bytes_are_refused(body: bytes, why: str) -> None:
    assert ALIGNMENT == 64
    with pytest.raises(CodecError, match=why):
        PayloadDecoder().decode("test_codec.Everything", body, np.zeros(64, np.uint8))


def test_tensors_that_share_bytes_cannot_amount_to_more_than_their_buffer() -> None:
    one = msgspec.msgpack.Ext(1, msgspec.msgpack.encode((0, (64,), 0, 64)))
    body = msgspec.msgpack.encode([None, None, {str(n): one for n in range(2)}])
    with pytest.raises(CodecError, match="more tensors than its buffer holds"):
        PayloadDecoder().decode("test_codec.Everything", body, np.zeros(64, np.uint8))
    empty = msgspec.msgpack.Ext(1, msgspec.msgpack.encode((0, (0,), 0, 0)))
    body = msgspec.msgpack.encode([None, None, {str(n): empty for n in range(MAX_TENSORS + 1)}])
    with pytest.raises(CodecError, match="more tensors than its buffer holds"):
        PayloadDecoder().decode("test_codec.Everything", body, np.zeros(64, np.uint8))


def test_a_tensor_on_a_gpu_needs_its_memory() -> None:
    on_gpu = msgspec.msgpack.Ext(1, msgspec.msgpack.encode((0, (64,), 0, 64, True)))
    with pytest.raises(CodecError, match="beyond its buffer"):
        PayloadDecoder().decode("test_codec.Everything", msgspec.msgpack.encode([on_gpu]), np.zeros(64, np.uint8))


def test_too_much_for_a_message_is_refused_by_its_sender() -> None:
    with pytest.raises(CodecError, match="carry large bytes as uint8 arrays"):
        EncodedPayload(Everything(raw=bytes(MAX_BODY + 1)))
    with pytest.raises(CodecError, match="more than 16384 tensors"):
        EncodedPayload(Everything(named={str(n): torch.empty(0) for n in range(MAX_TENSORS + 1)}))


@pytest.mark.filterwarnings("ignore:The given NumPy array is not writable")
@settings(max_examples=200)
@given(st.data())
def test_truncated_or_damaged_messages_never_do_more_than_fail(data: st.DataObject) -> None:
    encoded = EncodedPayload(Everything(tensor=torch.arange(9), text="x" * 20, listed=[Inner("a", torch.ones(3))]))
    body = bytearray(encoded.body)
    for _ in range(data.draw(st.integers(1, 4))):
        body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
    body = body[: data.draw(st.integers(0, len(body)))]
    buffer = np.frombuffer(encoded.inline(), np.uint8)
    try:
        decoded = PayloadDecoder().decode(encoded.type, bytes(body), buffer)
    except CodecError:
        return
    assert isinstance(decoded, Everything)


def test_unknown_types_are_named() -> None:
    with pytest.raises(UnknownPayload, match="'nothing.Here' is not known"):
        PayloadDecoder().decode("nothing.Here", b"\x90", np.empty(0, np.uint8))
