"""Payloads taken apart, on their way out."""

from __future__ import annotations

import ctypes
import sys
from typing import Any

import msgspec
import numpy as np

from omni_python.proto.codec.headers import (
    MAX_TENSORS,
    NUMPY_IDS,
    CodecError,
    aligned,
    extension,
    has_numpy,
    torch_id,
)
from omni_python.proto.payload import Payload

MAX_BODY = 32 << 20
"""Bytes of a payload without its tensors: half of the longest message that a socket takes."""

_UINT8 = np.dtype(np.uint8)


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
        self.nbytes = aligned(offset + nbytes)
        return offset

    def place(self) -> int:
        """The address at which the tensors lie already just as they would be laid there; 0 where they do not."""
        place = 0
        for offset, source, _ in self.sources:
            if place not in (0, source - offset):
                return 0
            place = source - offset
        return place


_NOTHING_ON_DEVICE = DevicePart()


class EncodedPayload:
    """A payload taken apart: `body` (MessagePack) and the buffers of its tensors, not copied yet.

    `keep_cuda` leaves CUDA tensors on the GPU with this index, as `device`; otherwise they are copied to the host.
    """

    __slots__ = ("_buffers", "body", "device", "nbytes", "type")

    nbytes: int
    """Bytes that `write_to` needs."""

    def __init__(self, payload: Payload, keep_cuda: int | None = None) -> None:
        self.type = payload.wire_name
        try:
            lifter = _idle.pop()
        except IndexError:
            lifter = _Lifter()
        lifter.keep_cuda = keep_cuda
        try:
            self.body = lifter.encode(payload)
        except (TypeError, RecursionError, OverflowError) as error:
            raise CodecError(f"{self.type} cannot be sent: {error}") from error
        finally:
            self._buffers, self.nbytes, self.device = lifter.lifted()
            _idle.append(lifter)
        if len(self.body) > MAX_BODY:
            raise CodecError(
                f"{self.type} cannot be sent: {len(self.body)} bytes beside its tensors, and at most {MAX_BODY} go "
                f"into a message; carry large bytes as uint8 arrays"
            )

    def place(self) -> int:
        """The address at which the tensors lie already just as `write_to` would put them there; 0 where they do not,
        or there are none."""
        place = 0
        for offset, source in self._buffers:
            address = address_of(source) - offset if source.flags.c_contiguous else 0
            if address == 0 or place not in (0, address):
                return 0
            place = address
        return place

    def write_to(self, buffer: np.ndarray) -> None:
        """Copy the tensors into `buffer`, uint8 [at least nbytes]."""
        for offset, source in self._buffers:
            buffer[offset : offset + source.nbytes] = np.ascontiguousarray(source).reshape(-1).view(_UINT8)

    def inline(self) -> bytes:
        """The tensors as one bytes object, for a message that carries them itself."""
        if not self._buffers:
            return b""
        if len(self._buffers) == 1:
            return self._buffers[0][1].tobytes()
        buffer = np.zeros(self.nbytes, np.uint8)
        self.write_to(buffer)
        return buffer.tobytes()


class _Lifter:
    """Encodes one payload at a time, and lifts its tensors out of it. Kept between payloads, since to make an encoder
    costs as much as to use it."""

    __slots__ = ("_buffers", "_device", "_nbytes", "_tensors", "encode", "keep_cuda")

    def __init__(self) -> None:
        self.encode = msgspec.msgpack.Encoder(enc_hook=self._lift).encode
        self.keep_cuda: int | None = None
        self._buffers: list[tuple[int, np.ndarray]] = []  # (offset, array)
        self._nbytes = self._tensors = 0
        self._device = _NOTHING_ON_DEVICE

    def lifted(self) -> tuple[list[tuple[int, np.ndarray]], int, DevicePart]:
        """The buffers of the last payload, the bytes that they need, and what stays on the GPU; they are kept no
        longer."""
        found = self._buffers, self._nbytes, self._device
        self._buffers = []
        self._nbytes = self._tensors = 0
        self._device = _NOTHING_ON_DEVICE
        return found

    def _lift(self, value: object) -> msgspec.msgpack.Ext:
        """Take a tensor; returns what stands for it in the body."""
        self._tensors += 1
        if self._tensors > MAX_TENSORS:
            raise TypeError(f"more than {MAX_TENSORS} tensors")
        if isinstance(value, np.ndarray):
            dtype = NUMPY_IDS.get(value.dtype)
            if dtype is None:
                raise TypeError(f"dtype {value.dtype} may not cross a stage border")
            return self._lift_array(dtype, value.shape, value)
        torch = sys.modules.get("torch")
        if torch is not None and isinstance(value, torch.Tensor):
            if self.keep_cuda is not None and value.is_cuda:
                return self._lift_cuda(value, self.keep_cuda)
            return self._lift_array(torch_id(value.dtype), tuple(value.shape), _on_host(value))
        if isinstance(value, np.generic):
            raise TypeError(f"numpy scalar {value!r}: use a Python number or an array")
        raise TypeError(f"a {type(value).__name__} may not cross a stage border")

    def _lift_array(self, dtype: int, shape: tuple[int, ...], array: np.ndarray) -> msgspec.msgpack.Ext:
        nbytes = array.nbytes
        if not nbytes:
            return extension(dtype, shape, 0, 0, False)
        offset = self._nbytes
        self._buffers.append((offset, array))
        self._nbytes = aligned(offset + nbytes)
        return extension(dtype, shape, offset, nbytes, False)

    def _lift_cuda(self, value: Any, gpu: int) -> msgspec.msgpack.Ext:
        tensor = value
        if not value.is_contiguous() or value.is_neg() or value.is_conj():
            tensor = value.resolve_conj().resolve_neg().contiguous()
        if tensor.get_device() != gpu:
            tensor = tensor.to(f"cuda:{gpu}")
        dtype = torch_id(tensor.dtype)
        offset, nbytes = 0, tensor.nbytes
        if nbytes:
            if self._device is _NOTHING_ON_DEVICE:
                self._device = DevicePart()
            offset = self._device.add(tensor, nbytes)
        return extension(dtype, tuple(tensor.shape), offset, nbytes, True)


_idle: list[_Lifter] = []
"""As many as there ever were payloads encoded at a time."""


def address_of(array: np.ndarray) -> int:
    """Where a contiguous array lies that is not empty."""
    if array.flags.writeable:  # as what lies in a relay's memory is
        start = ctypes.c_char.from_buffer(array)  # type: ignore[arg-type]  # numpy 1 is not typed as a buffer
        return ctypes.addressof(start)  # a third of what numpy's own way costs
    return int(array.ctypes.data)


def _on_host(tensor: Any) -> np.ndarray:
    """A tensor as an array on the host that shares its memory where it can; uint8 where numpy has no such dtype."""
    if has_numpy(torch_id(tensor.dtype)):
        array: np.ndarray = tensor.numpy(force=True)
    else:
        array = tensor.detach().cpu().contiguous().reshape(-1).view(sys.modules["torch"].uint8).numpy()
    return array
