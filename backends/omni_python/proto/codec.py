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
from functools import cache
from typing import Any, cast

import msgspec
import numpy as np

from omni_python.proto.errors import OmniError
from omni_python.proto.payload import Payload, payload_type, type_name

ALIGNMENT = 64
"""Offsets of tensors are multiples of this (bytes): a cache line, and any dtype's alignment."""

MAX_DIMENSIONS = 16

MAX_TENSORS = 16_384
"""Tensors in one payload."""

MAX_BODY = 32 << 20
"""Bytes of a payload without its tensors: half of the longest message that a socket takes."""

_MAX_SIZE = 1 << 48
"""Of one dimension; beyond it, shapes without elements overflow torch's arithmetic."""

_ANY = "payload"
"""Stands for any type: no type has such a name, without a module."""
_NO_BYTES = np.empty(0, np.uint8)
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
_NO_NUMPY = frozenset(("bfloat16", "float8_e4m3fn", "float8_e5m2"))
_DTYPE_IDS = {name: index for index, (name, _) in enumerate(_DTYPES)}

warnings.filterwarnings("ignore", message="The given NumPy array is not writable")  # views of a relay are read-only


class CodecError(OmniError):
    """A payload that cannot be encoded, or bytes that are no payload."""


class _TensorHeader(msgspec.Struct, array_like=True, frozen=True, gc=False):
    dtype: int
    shape: tuple[int, ...]
    offset: int
    nbytes: int
    on_device: bool = False


class DevicePart:
    """A payload's CUDA tensors, not copied yet: where each is to lie in a buffer of `nbytes`, and where it is now."""

    __slots__ = ("_tensors", "nbytes", "sources")

    def __init__(self) -> None:
        self.nbytes = 0
        self.sources: list[tuple[int, int, int]] = []
        """(offset in the buffer, address on the tensor's GPU, bytes)"""
        self._tensors: list[Any] = []

    def add(self, tensor: Any, nbytes: int) -> int:
        """Take a contiguous CUDA tensor, which is kept as long as this is; returns its offset."""
        offset = self.nbytes
        self.sources.append((offset, tensor.data_ptr(), nbytes))
        self._tensors.append(tensor)
        self.nbytes = _aligned(offset + nbytes)
        return offset

    @property
    def address(self) -> int:
        """Where the first tensor's bytes are; 0 without tensors."""
        return self.sources[0][1] if self.sources else 0

    def lies_at(self, address: int) -> bool:
        """Whether the tensors already are at `address` just as they would be laid there."""
        return all(source == address + offset for offset, source, _ in self.sources)


class EncodedPayload:
    """A payload taken apart: `body` (MessagePack) and the buffers of its tensors, not copied yet.

    `keep_cuda` leaves CUDA tensors on the GPU with this index, as `device`; otherwise they are copied to the host.
    """

    __slots__ = ("_buffers", "_keep_cuda", "_tensors", "body", "device", "nbytes", "type")

    def __init__(self, payload: Payload, keep_cuda: int | None = None) -> None:
        self.type = type_name(type(payload))
        self.nbytes = 0
        """Bytes that `write_to` needs."""
        self.device = DevicePart()
        self._buffers: list[tuple[int, np.ndarray]] = []
        self._keep_cuda = keep_cuda
        self._tensors = 0
        try:
            self.body = msgspec.msgpack.Encoder(enc_hook=self._lift).encode(payload)
        except (TypeError, RecursionError, OverflowError) as error:
            raise CodecError(f"{self.type} cannot be sent: {error}") from error
        if len(self.body) > MAX_BODY:
            raise CodecError(
                f"{self.type} cannot be sent: {len(self.body)} bytes beside its tensors, and at most {MAX_BODY} go "
                f"into a message; carry large bytes as uint8 arrays"
            )

    def lies_at(self, address: int) -> bool:
        """Whether the tensors already are at `address` just as `write_to` would put them there."""
        return all(source.ctypes.data == address + offset for offset, source in self._buffers)

    @property
    def address(self) -> int:
        """Where the first tensor's bytes are; 0 without tensors."""
        return self._buffers[0][1].ctypes.data if self._buffers else 0

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
        self._tensors += 1
        if self._tensors > MAX_TENSORS:
            raise TypeError(f"more than {MAX_TENSORS} tensors")
        if isinstance(value, np.ndarray):
            dtype, shape, data = _numpy_name(value.dtype), value.shape, _numpy_bytes(value)
        elif type(value).__module__.partition(".")[0] == "torch":
            if self._keep_cuda is not None and getattr(value, "is_cuda", False):
                return self._lift_cuda(value, self._keep_cuda)
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
            self.nbytes = _aligned(offset + data.nbytes)
        return _extension(_TensorHeader(dtype_id, shape, offset, data.nbytes))

    def _lift_cuda(self, value: Any, gpu: int) -> msgspec.msgpack.Ext:
        tensor = value.resolve_conj().resolve_neg().contiguous()
        if tensor.get_device() != gpu:
            tensor = tensor.to(f"cuda:{gpu}")
        dtype = _torch_name(tensor.dtype)
        if dtype not in _DTYPE_IDS:
            raise TypeError(f"dtype {dtype} may not cross a stage border")
        nbytes = tensor.nbytes
        offset = self.device.add(tensor, nbytes) if nbytes else 0
        return _extension(_TensorHeader(_DTYPE_IDS[dtype], tuple(tensor.shape), offset, nbytes, True))


class PayloadDecoder:
    """Turns bodies and buffers back into payloads. Not thread-safe: one a thread."""

    def __init__(self) -> None:
        self._decoders: dict[str, msgspec.msgpack.Decoder[Any]] = {}
        self._headers = msgspec.msgpack.Decoder(_TensorHeader)
        self._buffer: np.ndarray
        self._device: Any
        self._forget()

    def decode(self, type: str, body: bytes, buffer: np.ndarray, device: Any = None) -> Payload:
        """The payload; its tensors are views of `buffer`, uint8 [n], or of `device`, a uint8 CUDA tensor [m].

        Raises `CodecError` for anything malformed.
        """
        decoder = self._decoders.get(type)
        if decoder is None:
            decoder = msgspec.msgpack.Decoder(payload_type(type), ext_hook=self._view, dec_hook=_as_annotated)
            self._decoders[type] = decoder
        self._buffer, self._device = buffer, device
        self._bytes_left = len(buffer) + (0 if device is None else device.numel())
        self._tensors_left = MAX_TENSORS
        try:
            return cast(Payload, decoder.decode(body))
        except (msgspec.MsgspecError, ValueError, RecursionError, RuntimeError) as error:
            raise CodecError(f"malformed {type}: {error}") from error
        finally:
            self._forget()

    def decode_plain(self, body: bytes, buffer: np.ndarray) -> list[Any]:
        """The values of a payload whose type need not be known, by position: structs as lists or dicts, tensors as
        arrays, of which those that numpy has no type for are float32. Raises `CodecError` for anything malformed."""
        if _ANY not in self._decoders:
            as_array = msgspec.msgpack.Decoder(list[Any], ext_hook=lambda *ext: _plain(self._view(*ext)))
            self._decoders[_ANY] = as_array
        return cast(list[Any], self.decode(_ANY, body, buffer))

    def _forget(self) -> None:
        """Let go of the buffers, which may be slots of a relay."""
        self._buffer, self._device = _NO_BYTES, None
        self._bytes_left = self._tensors_left = 0

    def _view(self, code: int, data: memoryview) -> _TensorView:
        if code != _TENSOR:
            raise ValueError(f"unknown extension {code}")
        header = self._headers.decode(data)
        if not 0 <= header.dtype < len(_DTYPES):
            raise ValueError(f"unknown dtype {header.dtype}")
        shape = header.shape
        if len(shape) > MAX_DIMENSIONS or (shape and not 0 <= min(shape) <= max(shape) < _MAX_SIZE):
            raise ValueError(f"impossible shape {shape[:MAX_DIMENSIONS]}")
        name, itemsize = _DTYPES[header.dtype]
        end = header.offset + header.nbytes
        if not header.on_device:
            length = len(self._buffer)
        elif self._device is not None:
            length = self._device.numel()
        else:
            length = 0
        if math.prod(shape) * itemsize != header.nbytes or header.offset < 0 or end > length:
            raise ValueError("a tensor reaches beyond its buffer")
        self._bytes_left -= header.nbytes
        self._tensors_left -= 1
        if self._bytes_left < 0 or self._tensors_left < 0:
            raise ValueError("there are more tensors than its buffer holds")
        if header.nbytes and header.offset % ALIGNMENT:
            raise ValueError("a tensor is not aligned")
        if header.on_device:
            whole = header.nbytes == length
            part = self._device if whole else self._device[header.offset : end] if header.nbytes else None
            return _TensorView(name, shape, part, True)
        return _TensorView(name, shape, self._buffer[header.offset : end])


class _TensorView(msgspec.Struct, gc=False):
    dtype: str
    shape: tuple[int, ...]
    data: Any
    """uint8 [n]: an array, or where `on_device` a CUDA tensor, or None for no bytes."""
    on_device: bool = False


def _plain(tensor: _TensorView) -> np.ndarray:
    if not math.prod(tensor.shape):
        return np.empty(tensor.shape, np.float32)
    if tensor.dtype in _NO_NUMPY:
        import torch

        return torch.from_numpy(tensor.data).view(getattr(torch, tensor.dtype)).float().numpy().reshape(tensor.shape)
    array: np.ndarray = tensor.data.view(tensor.dtype).reshape(tensor.shape)
    return array


def _as_annotated(annotation: type, value: object) -> object:
    """Called for each field whose annotation msgspec does not know: an array or a tensor."""
    if not isinstance(value, _TensorView):
        raise ValueError(f"expected a tensor, got {type(value).__name__}")
    if annotation is np.ndarray:
        if value.on_device:
            raise ValueError("a tensor on a GPU does not fit numpy.ndarray")
        try:
            return value.data.view(value.dtype).reshape(value.shape)
        except TypeError:
            raise ValueError(f"numpy has no {value.dtype}") from None
    torch = sys.modules.get("torch")
    if torch is not None and annotation is torch.Tensor:
        if not math.prod(value.shape):
            device = "cuda" if value.on_device else "cpu"
            return torch.empty(value.shape, dtype=getattr(torch, value.dtype), device=device)
        flat = value.data if value.on_device else torch.from_numpy(value.data)
        if value.dtype != "uint8":
            flat = flat.view(getattr(torch, value.dtype))
        return flat if len(value.shape) == 1 else flat.view(value.shape)
    raise ValueError(f"a tensor does not fit {annotation!r}")


@cache
def _numpy_name(dtype: np.dtype[Any]) -> str:
    """`dtype.name`, which numpy makes anew each time: a third of what encoding a small payload takes."""
    return dtype.name


def _numpy_bytes(array: np.ndarray) -> np.ndarray:
    if array.ndim != 1 or not array.flags.c_contiguous:
        array = np.ascontiguousarray(array).reshape(-1)
    return array.view(np.uint8)


@cache
def _torch_name(dtype: Any) -> str:
    return str(dtype).removeprefix("torch.")


def _torch_bytes(value: Any) -> tuple[str, tuple[int, ...], np.ndarray]:
    torch = sys.modules["torch"]
    if not isinstance(value, torch.Tensor):
        raise TypeError(f"a {type(value).__name__} may not cross a stage border")
    dtype, shape, raw = _raw_torch(value.detach().cpu().contiguous())
    return dtype, shape, raw.numpy()


def _raw_torch(tensor: Any) -> tuple[str, tuple[int, ...], Any]:
    """The dtype's name, the shape, and the bytes as a uint8 tensor [n] that shares a contiguous tensor's memory."""
    torch = sys.modules["torch"]
    if tensor.is_complex():
        raw = torch.view_as_real(tensor.resolve_conj()).reshape(-1).view(torch.uint8)
    else:
        raw = tensor.reshape(-1).view(torch.uint8)
    return _torch_name(tensor.dtype), tuple(tensor.shape), raw


_encode_header = msgspec.msgpack.Encoder().encode


def _extension(header: _TensorHeader) -> msgspec.msgpack.Ext:
    return msgspec.msgpack.Ext(_TENSOR, _encode_header(header))


def _aligned(nbytes: int) -> int:
    return nbytes + -nbytes % ALIGNMENT
