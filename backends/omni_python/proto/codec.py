"""Payloads as bytes, without pickle: MessagePack with every tensor lifted out of it.

A tensor becomes the extension `[dtype, shape, offset, nbytes]`; its bytes lie in a separate buffer at that
offset. That buffer rides inside the message when it is small and in a relay slot otherwise, and the
receiver's tensors are views of it. Nothing that is decoded can run code, and every reference is checked
against the buffer's bounds.
"""

from __future__ import annotations

import math
import sys
import warnings
from typing import Any, cast

import msgspec
import numpy as np

from omni_python.proto.errors import OmniError
from omni_python.proto.payload import Payload, payload_type, type_name

ALIGNMENT = 64
"""Offsets of tensors are multiples of this (bytes): a cache line, and any dtype's alignment."""

MAX_DIMENSIONS = 16

_TENSOR = 1
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
_DTYPE_IDS = {name: index for index, (name, _) in enumerate(_DTYPES)}

warnings.filterwarnings("ignore", message="The given NumPy array is not writable")  # views of a relay are read-only


class CodecError(OmniError):
    """A payload that cannot be encoded, or bytes that are no payload."""


class _TensorHeader(msgspec.Struct, array_like=True, frozen=True, gc=False):
    dtype: int
    shape: tuple[int, ...]
    offset: int
    nbytes: int


class EncodedPayload:
    """A payload taken apart: `body` (MessagePack) and the buffers of its tensors, not copied yet."""

    __slots__ = ("_buffers", "body", "nbytes", "type")

    def __init__(self, payload: Payload) -> None:
        self.type = type_name(type(payload))
        self.nbytes = 0
        """Bytes that `write_to` needs."""
        self._buffers: list[tuple[int, np.ndarray]] = []
        try:
            self.body = msgspec.msgpack.Encoder(enc_hook=self._lift).encode(payload)
        except (TypeError, RecursionError, OverflowError) as error:
            raise CodecError(f"{self.type} cannot be sent: {error}") from error

    def write_to(self, buffer: np.ndarray) -> None:
        """Copy the tensors into `buffer`, uint8 [at least nbytes]."""
        for offset, source in self._buffers:
            buffer[offset : offset + source.nbytes] = source

    def inline(self) -> bytes:
        """The tensors as one bytes object, for a message that carries them itself."""
        if not self._buffers:
            return b""
        if len(self._buffers) == 1:
            return self._buffers[0][1].tobytes()
        buffer = np.zeros(self.nbytes, np.uint8)
        self.write_to(buffer)
        return buffer.tobytes()

    def _lift(self, value: object) -> msgspec.msgpack.Ext:
        if isinstance(value, np.ndarray):
            dtype, shape, data = value.dtype.name, value.shape, _numpy_bytes(value)
        elif type(value).__module__.partition(".")[0] == "torch":
            dtype, shape, data = _torch_bytes(value)
        elif isinstance(value, np.generic):
            raise TypeError(f"numpy scalar {value!r}: use a Python number or an array")
        else:
            raise TypeError(f"a {type(value).__name__} may not cross a stage border")
        try:
            dtype_id = _DTYPE_IDS[dtype]
        except KeyError:
            raise TypeError(f"dtype {dtype} may not cross a stage border") from None
        offset = 0
        if data.nbytes:
            offset = self.nbytes
            self._buffers.append((offset, data))
            self.nbytes = offset + data.nbytes
            self.nbytes += -self.nbytes % ALIGNMENT
        header = _TensorHeader(dtype_id, shape, offset, data.nbytes)
        return msgspec.msgpack.Ext(_TENSOR, msgspec.msgpack.encode(header))


class PayloadDecoder:
    """Turns bodies and buffers back into payloads. Not thread-safe: one a thread."""

    def __init__(self) -> None:
        self._decoders: dict[str, msgspec.msgpack.Decoder[Any]] = {}
        self._headers = msgspec.msgpack.Decoder(_TensorHeader)
        self._buffer = np.empty(0, np.uint8)

    def decode(self, type: str, body: bytes, buffer: np.ndarray) -> Payload:
        """The payload; its tensors are views of `buffer`, uint8 [n]. Raises `CodecError` for anything malformed."""
        decoder = self._decoders.get(type)
        if decoder is None:
            decoder = msgspec.msgpack.Decoder(payload_type(type), ext_hook=self._view, dec_hook=_as_annotated)
            self._decoders[type] = decoder
        self._buffer = buffer
        try:
            return cast(Payload, decoder.decode(body))
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            raise CodecError(f"malformed {type}: {error}") from error
        finally:
            self._buffer = np.empty(0, np.uint8)

    def _view(self, code: int, data: memoryview) -> _TensorView:
        if code != _TENSOR:
            raise ValueError(f"unknown extension {code}")
        header = self._headers.decode(data)
        if not 0 <= header.dtype < len(_DTYPES):
            raise ValueError(f"unknown dtype {header.dtype}")
        if len(header.shape) > MAX_DIMENSIONS or any(size < 0 for size in header.shape):
            raise ValueError(f"impossible shape {header.shape[:MAX_DIMENSIONS]}")
        name, itemsize = _DTYPES[header.dtype]
        end = header.offset + header.nbytes
        if math.prod(header.shape) * itemsize != header.nbytes or header.offset < 0 or end > len(self._buffer):
            raise ValueError("a tensor reaches beyond its buffer")
        if header.nbytes and header.offset % ALIGNMENT:
            raise ValueError("a tensor is not aligned")
        return _TensorView(name, header.shape, self._buffer[header.offset : end])


class _TensorView(msgspec.Struct):
    dtype: str
    shape: tuple[int, ...]
    data: np.ndarray


def _as_annotated(annotation: type, value: object) -> object:
    """Called for each field whose annotation msgspec does not know: an array or a tensor."""
    if not isinstance(value, _TensorView):
        raise ValueError(f"expected a tensor, got {type(value).__name__}")
    if annotation is np.ndarray:
        try:
            return value.data.view(value.dtype).reshape(value.shape)
        except TypeError:
            raise ValueError(f"numpy has no {value.dtype}") from None
    torch = sys.modules.get("torch")
    if torch is not None and annotation is torch.Tensor:
        if not value.data.nbytes:
            return torch.empty(value.shape, dtype=getattr(torch, value.dtype))
        flat = torch.from_numpy(value.data)
        return flat.view(getattr(torch, value.dtype)).view(value.shape)
    raise ValueError(f"a tensor does not fit {annotation!r}")


def _numpy_bytes(array: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)


def _torch_bytes(value: Any) -> tuple[str, tuple[int, ...], np.ndarray]:
    torch = sys.modules["torch"]
    if not isinstance(value, torch.Tensor):
        raise TypeError(f"a {type(value).__name__} may not cross a stage border")
    tensor = value.detach().cpu().contiguous()
    if tensor.is_complex():
        raw = torch.view_as_real(tensor.resolve_conj()).reshape(-1).view(torch.uint8)
    else:
        raw = tensor.reshape(-1).view(torch.uint8)
    return str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape), raw.numpy()
