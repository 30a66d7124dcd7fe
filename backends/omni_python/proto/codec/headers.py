"""How a payload's body describes a tensor: the extension `[dtype, shape, offset, nbytes]`, whose numbers say where its
bytes lie in the buffer beside the body."""

from __future__ import annotations

import math
from functools import cache, lru_cache
from typing import Any

import msgspec
import numpy as np

from omni_python.proto.errors import OmniError

ALIGNMENT = 64
"""Offsets of tensors are multiples of this (bytes): a cache line, and any dtype's alignment."""

MAX_DIMENSIONS = 16

MAX_TENSORS = 16_384
"""Tensors in one payload."""

KNOWN_HEADERS = 1024
"""Headers that a sender, and each decoder, remembers: the tensors of an edge are the same again and again."""

TENSOR = 1
"""The code of the extension."""

_MAX_SIZE = 1 << 48
"""Of one dimension; beyond it, shapes without elements overflow torch's arithmetic."""

_DTYPES: tuple[tuple[str, int], ...] = (  # the index is the wire value: append only
    ("uint8", 1),
    ("int8", 1),
    ("int16", 2),
    ("int32", 4),
    ("int64", 8),
    ("uint16", 2),
    ("uint32", 4),
    ("uint64", 8),
    ("float16", 2),
    ("float32", 4),
    ("float64", 8),
    ("bool", 1),
    ("bfloat16", 2),
    ("complex64", 8),
    ("complex128", 16),
    ("float8_e4m3fn", 1),
    ("float8_e5m2", 1),
)
_NO_NUMPY = frozenset(("bfloat16", "float8_e4m3fn", "float8_e5m2"))
_DTYPE_IDS = {name: index for index, (name, _) in enumerate(_DTYPES)}
_NUMPY_DTYPES = tuple(None if name in _NO_NUMPY else np.dtype(name) for name, _ in _DTYPES)
NUMPY_IDS = {dtype: index for index, dtype in enumerate(_NUMPY_DTYPES) if dtype is not None}


class CodecError(OmniError):
    """A payload that cannot be encoded, or bytes that are no payload."""


class _WireHeader(msgspec.Struct, array_like=True, frozen=True, gc=False):
    dtype: int
    shape: tuple[int, ...]
    offset: int
    nbytes: int
    on_device: bool = False


class TensorHeader(msgspec.Struct, frozen=True, gc=False):
    """A tensor of the dtype `name`, which numpy knows as `numpy` if at all, in the bytes from `offset` to `end` of the
    buffer on the host, or of that on the device. All numbers fit together, whatever the buffer is."""

    name: str
    numpy: np.dtype[Any] | None
    shape: tuple[int, ...]
    offset: int
    end: int
    nbytes: int
    on_device: bool


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(_WireHeader).decode


@lru_cache(KNOWN_HEADERS)
def extension(dtype: int, shape: tuple[int, ...], offset: int, nbytes: int, on_device: bool) -> msgspec.msgpack.Ext:
    """What stands for a tensor in a body."""
    return msgspec.msgpack.Ext(TENSOR, _encode(_WireHeader(dtype, shape, offset, nbytes, on_device)))


def read_header(raw: bytes) -> TensorHeader:
    """The header in an extension. Raises `ValueError`, or an error of msgspec's, for anything malformed."""
    header = _decode(raw)
    if not 0 <= header.dtype < len(_DTYPES):
        raise ValueError(f"unknown dtype {header.dtype}")
    name, itemsize = _DTYPES[header.dtype]
    shape = header.shape
    if len(shape) > MAX_DIMENSIONS or (shape and not 0 <= min(shape) <= max(shape) < _MAX_SIZE):
        raise ValueError(f"impossible shape {shape[:MAX_DIMENSIONS]}")
    if math.prod(shape) * itemsize != header.nbytes or header.offset < 0:
        raise ValueError("a tensor reaches beyond its buffer")
    if header.nbytes and header.offset % ALIGNMENT:
        raise ValueError("a tensor is not aligned")
    end = header.offset + header.nbytes
    return TensorHeader(name, _NUMPY_DTYPES[header.dtype], shape, header.offset, end, header.nbytes, header.on_device)


@cache
def torch_id(dtype: Any) -> int:
    """The wire value of a dtype of torch's."""
    try:
        return _DTYPE_IDS[str(dtype).removeprefix("torch.")]
    except KeyError:
        raise TypeError(f"dtype {dtype} may not cross a stage border") from None


def has_numpy(dtype: int) -> bool:
    """Whether numpy knows the dtype with this wire value."""
    return _NUMPY_DTYPES[dtype] is not None


def aligned(nbytes: int) -> int:
    return (nbytes + ALIGNMENT - 1) & -ALIGNMENT
