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
from functools import cache, lru_cache
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
_NUMPY_DTYPES = {name: np.dtype(name) for name, _ in _DTYPES if name not in _NO_NUMPY}
_NUMPY_IDS = {dtype: _DTYPE_IDS[name] for name, dtype in _NUMPY_DTYPES.items()}
_UINT8 = np.dtype(np.uint8)

KNOWN_HEADERS = 1024
"""Headers that a sender, and each decoder, remembers: the tensors of an edge are the same again and again."""

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

    def place(self) -> int:
        """The address at which the tensors lie already just as they would be laid there; 0 where they do not."""
        if not self.sources:
            return 0
        address = self.sources[0][1]
        return address if all(source == address + offset for offset, source, _ in self.sources[1:]) else 0


_NOTHING_ON_DEVICE = DevicePart()


class EncodedPayload:
    """A payload taken apart: `body` (MessagePack) and the buffers of its tensors, not copied yet.

    `keep_cuda` leaves CUDA tensors on the GPU with this index, as `device`; otherwise they are copied to the host.
    """

    __slots__ = ("_buffers", "_keep_cuda", "_tensors", "body", "device", "nbytes", "type")

    def __init__(self, payload: Payload, keep_cuda: int | None = None) -> None:
        self.type = type_name(type(payload))
        self.nbytes = 0
        """Bytes that `write_to` needs."""
        self.device = _NOTHING_ON_DEVICE
        self._buffers: list[tuple[int, np.ndarray]] = []  # (offset, contiguous array)
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

    def place(self) -> int:
        """The address at which the tensors lie already just as `write_to` would put them there; 0 where they do not,
        or there are none."""
        if not self._buffers:
            return 0
        address = _address(self._buffers[0][1])
        return address if all(_address(source) == address + offset for offset, source in self._buffers[1:]) else 0

    def write_to(self, buffer: np.ndarray) -> None:
        """Copy the tensors into `buffer`, uint8 [at least nbytes]."""
        for offset, source in self._buffers:
            buffer[offset : offset + source.nbytes] = _as_bytes(source)

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
            dtype = _NUMPY_IDS.get(value.dtype)
            if dtype is None:
                raise TypeError(f"dtype {value.dtype} may not cross a stage border")
            return self._lift_array(dtype, value.shape, value)
        torch = sys.modules.get("torch")
        if torch is not None and isinstance(value, torch.Tensor):
            if self._keep_cuda is not None and value.is_cuda:
                return self._lift_cuda(value, self._keep_cuda)
            return self._lift_array(_torch_id(value.dtype), tuple(value.shape), _on_host(value))
        if isinstance(value, np.generic):
            raise TypeError(f"numpy scalar {value!r}: use a Python number or an array")
        raise TypeError(f"a {type(value).__name__} may not cross a stage border")

    def _lift_array(self, dtype: int, shape: tuple[int, ...], array: np.ndarray) -> msgspec.msgpack.Ext:
        offset, nbytes = 0, array.nbytes
        if nbytes:
            offset = self.nbytes
            self._buffers.append((offset, array if array.flags.c_contiguous else np.ascontiguousarray(array)))
            self.nbytes = _aligned(offset + nbytes)
        return _extension(dtype, shape, offset, nbytes, False)

    def _lift_cuda(self, value: Any, gpu: int) -> msgspec.msgpack.Ext:
        tensor = value
        if not value.is_contiguous() or value.is_neg() or value.is_conj():
            tensor = value.resolve_conj().resolve_neg().contiguous()
        if tensor.get_device() != gpu:
            tensor = tensor.to(f"cuda:{gpu}")
        dtype = _torch_id(tensor.dtype)
        offset, nbytes = 0, tensor.nbytes
        if nbytes:
            if self.device is _NOTHING_ON_DEVICE:
                self.device = DevicePart()
            offset = self.device.add(tensor, nbytes)
        return _extension(dtype, tuple(tensor.shape), offset, nbytes, True)


class PayloadDecoder:
    """Turns bodies and buffers back into payloads. Not thread-safe: one a thread."""

    def __init__(self) -> None:
        self._decoders: dict[str, msgspec.msgpack.Decoder[Any]] = {}
        self._headers: dict[bytes, _TensorHeader] = {}  # those that were found to be sound, as they came
        self._buffer: np.ndarray | bytes = b""
        self._device: Any = None
        self._bytes_left = self._tensors_left = 0

    def decode(self, type: str, body: bytes, buffer: np.ndarray | bytes, device: Any = None) -> Payload:
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
            self._buffer, self._device = b"", None  # which may be slots of a relay

    def decode_plain(self, body: bytes, buffer: np.ndarray | bytes) -> list[Any]:
        """The values of a payload whose type need not be known, by position: structs as lists or dicts, tensors as
        arrays, of which those that numpy has no type for are float32. Raises `CodecError` for anything malformed."""
        if _ANY not in self._decoders:
            as_array = msgspec.msgpack.Decoder(list[Any], ext_hook=lambda *ext: _plain(self._view(*ext)))
            self._decoders[_ANY] = as_array
        return cast(list[Any], self.decode(_ANY, body, buffer))

    def _view(self, code: int, data: memoryview) -> _TensorView:
        if code != _TENSOR:
            raise ValueError(f"unknown extension {code}")
        raw = bytes(data)
        header = self._headers.get(raw) or self._read_header(raw)
        memory: Any = self._device if header.on_device else self._buffer
        length = 0 if memory is None else memory.numel() if header.on_device else len(memory)
        if header.offset + header.nbytes > length:
            raise ValueError("a tensor reaches beyond its buffer")
        self._bytes_left -= header.nbytes
        self._tensors_left -= 1
        if self._bytes_left < 0 or self._tensors_left < 0:
            raise ValueError("there are more tensors than its buffer holds")
        return _TensorView(header, memory)

    def _read_header(self, raw: bytes) -> _TensorHeader:
        """A header all of whose numbers fit together, whatever the buffer is. Raises `ValueError` for others."""
        header = _decode_header(raw)
        if not 0 <= header.dtype < len(_DTYPES):
            raise ValueError(f"unknown dtype {header.dtype}")
        shape = header.shape
        if len(shape) > MAX_DIMENSIONS or (shape and not 0 <= min(shape) <= max(shape) < _MAX_SIZE):
            raise ValueError(f"impossible shape {shape[:MAX_DIMENSIONS]}")
        if math.prod(shape) * _DTYPES[header.dtype][1] != header.nbytes or header.offset < 0:
            raise ValueError("a tensor reaches beyond its buffer")
        if header.nbytes and header.offset % ALIGNMENT:
            raise ValueError("a tensor is not aligned")
        if len(self._headers) >= KNOWN_HEADERS:
            self._headers.clear()
        self._headers[raw] = header
        return header


class _TensorView(msgspec.Struct, gc=False):
    """A tensor to be cut from `memory` when it is known what is wanted: from uint8 [n], an array or bytes, or where the
    header says `on_device` from a CUDA tensor (None for no bytes)."""

    header: _TensorHeader
    memory: Any

    def array(self) -> np.ndarray:
        """As an array over the memory. Raises `ValueError` where numpy has no such dtype."""
        header = self.header
        name = _DTYPES[header.dtype][0]
        dtype = _NUMPY_DTYPES.get(name)
        if dtype is None:
            raise ValueError(f"numpy has no {name}")
        return np.ndarray(header.shape, dtype, self.memory, header.offset)

    def tensor(self, torch: Any) -> Any:
        header = self.header
        name = _DTYPES[header.dtype][0]
        if header.nbytes and not header.on_device and name in _NUMPY_DTYPES:
            return torch.from_numpy(self.array())
        if not header.nbytes:
            device = "cuda" if header.on_device else "cpu"
            return torch.empty(header.shape, dtype=getattr(torch, name), device=device)
        flat = self._flat(torch)
        if name != "uint8":
            flat = flat.view(getattr(torch, name))
        return flat if len(header.shape) == 1 else flat.view(header.shape)

    def _flat(self, torch: Any) -> Any:
        """uint8 [nbytes]. Slicing costs about as much as all the rest, so the whole is not sliced."""
        offset, nbytes = self.header.offset, self.header.nbytes
        if not self.header.on_device:
            return torch.from_numpy(np.ndarray((nbytes,), _UINT8, self.memory, offset))
        return self.memory if nbytes == self.memory.numel() else self.memory[offset : offset + nbytes]


def _plain(view: _TensorView) -> np.ndarray:
    if not view.header.nbytes:
        return np.empty(view.header.shape, np.float32)
    if _DTYPES[view.header.dtype][0] in _NUMPY_DTYPES:
        return view.array()
    import torch

    array: np.ndarray = view.tensor(torch).float().numpy()
    return array


def _as_annotated(annotation: type, value: object) -> object:
    """Called for each field whose annotation msgspec does not know: an array or a tensor."""
    if not isinstance(value, _TensorView):
        raise ValueError(f"expected a tensor, got {type(value).__name__}")
    if annotation is np.ndarray:
        if value.header.on_device:
            raise ValueError("a tensor on a GPU does not fit numpy.ndarray")
        return value.array()
    torch = sys.modules.get("torch")
    if torch is not None and annotation is torch.Tensor:
        return value.tensor(torch)
    raise ValueError(f"a tensor does not fit {annotation!r}")


@cache
def _torch_id(dtype: Any) -> int:
    try:
        return _DTYPE_IDS[str(dtype).removeprefix("torch.")]
    except KeyError:
        raise TypeError(f"dtype {dtype} may not cross a stage border") from None


def _address(array: np.ndarray) -> int:
    return int(array.ctypes.data)


def _as_bytes(array: np.ndarray) -> np.ndarray:
    """uint8 [nbytes] over a contiguous array's memory."""
    return array.reshape(-1).view(_UINT8)


def _on_host(tensor: Any) -> np.ndarray:
    """A tensor as an array on the host that shares its memory where it can; uint8 where numpy has no such dtype."""
    if _DTYPES[_torch_id(tensor.dtype)][0] in _NUMPY_DTYPES:
        array: np.ndarray = tensor.numpy(force=True)
    else:
        array = tensor.detach().cpu().contiguous().reshape(-1).view(sys.modules["torch"].uint8).numpy()
    return array


_encode_header = msgspec.msgpack.Encoder().encode
_decode_header = msgspec.msgpack.Decoder(_TensorHeader).decode


@lru_cache(KNOWN_HEADERS)
def _extension(dtype: int, shape: tuple[int, ...], offset: int, nbytes: int, on_device: bool) -> msgspec.msgpack.Ext:
    return msgspec.msgpack.Ext(_TENSOR, _encode_header(_TensorHeader(dtype, shape, offset, nbytes, on_device)))


def _aligned(nbytes: int) -> int:
    return nbytes + -nbytes % ALIGNMENT
