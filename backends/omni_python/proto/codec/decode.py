"""Bodies and buffers put together again: payloads whose tensors are views of the buffers."""

from __future__ import annotations

import sys
import warnings
from typing import Any, cast

import msgspec
import numpy as np

from omni_python.proto.codec.headers import (
    KNOWN_HEADERS,
    MAX_TENSORS,
    TENSOR,
    CodecError,
    TensorHeader,
    read_header,
)
from omni_python.proto.payload import Payload, payload_type

_ANY = "payload"
"""Stands for any type: no type has such a name, without a module."""

_UINT8 = np.dtype(np.uint8)
_Extension = msgspec.msgpack.Ext

warnings.filterwarnings("ignore", message="The given NumPy array is not writable")  # views of a relay are read-only


class PayloadDecoder:
    """Turns bodies and buffers back into payloads. Not thread-safe: one at a time."""

    def __init__(self) -> None:
        self._decoders: dict[str, msgspec.msgpack.Decoder[Any]] = {}
        self._headers: dict[bytes, TensorHeader] = {}  # those that were found to be sound, as they came
        self._buffer: np.ndarray | bytes = b""
        self._device: Any = None
        self._bytes_left = self._tensors_left = 0

    def decode(self, type: str, body: bytes, buffer: np.ndarray | bytes, device: Any = None) -> Payload:
        """The payload; its tensors are views of `buffer`, uint8 [n], or of `device`, a uint8 CUDA tensor [m].

        Raises `CodecError` for anything malformed.
        """
        decoder = self._decoders.get(type)
        if decoder is None:
            decoder = msgspec.msgpack.Decoder(payload_type(type), dec_hook=self._as_annotated)
            self._decoders[type] = decoder
        self._buffer, self._device = buffer, device
        self._bytes_left = len(buffer) if device is None else len(buffer) + device.numel()
        self._tensors_left = MAX_TENSORS
        try:
            payload: Payload = decoder.decode(body)
            return payload
        except (msgspec.MsgspecError, ValueError, RecursionError, RuntimeError) as error:
            raise CodecError(f"malformed {type}: {error}") from error
        finally:
            self._buffer, self._device = b"", None  # which may be slots of a relay

    def decode_plain(self, body: bytes, buffer: np.ndarray | bytes) -> list[Any]:
        """The values of a payload whose type need not be known, by position: structs as lists or dicts, tensors as
        arrays, of which those that numpy has no type for are float32. Raises `CodecError` for anything malformed."""
        if _ANY not in self._decoders:
            self._decoders[_ANY] = msgspec.msgpack.Decoder(list[Any], ext_hook=self._plain)
        return cast(list[Any], self.decode(_ANY, body, buffer))

    def _as_annotated(self, annotation: type, value: object) -> object:
        """Called for each field whose annotation msgspec does not know: an array or a tensor."""
        if type(value) is not _Extension:
            raise ValueError(f"expected a tensor, got {type(value).__name__}")
        header = self._header(value.code, value.data)
        if annotation is np.ndarray:
            if header.on_device:
                raise ValueError("a tensor on a GPU does not fit numpy.ndarray")
            return _array(header, self._buffer)
        torch = sys.modules.get("torch")
        if torch is not None and annotation is torch.Tensor:
            return _tensor(torch, header, self._device if header.on_device else self._buffer)
        raise ValueError(f"a tensor does not fit {annotation!r}")

    def _plain(self, code: int, data: memoryview) -> np.ndarray:
        header = self._header(code, bytes(data))
        if not header.nbytes:
            return np.empty(header.shape, np.float32)
        if header.numpy is not None:
            return _array(header, self._buffer)
        import torch

        array: np.ndarray = _tensor(torch, header, self._buffer).float().numpy()
        return array

    def _header(self, code: int, raw: Any) -> TensorHeader:
        """What an extension's bytes say of a tensor, which lies within the buffers."""
        if code != TENSOR:
            raise ValueError(f"unknown extension {code}")
        header = self._headers.get(raw)
        if header is None:
            header = read_header(raw)
            if len(self._headers) >= KNOWN_HEADERS:
                self._headers.clear()
            self._headers[raw] = header
        if header.end > (_size(self._device) if header.on_device else len(self._buffer)):
            raise ValueError("a tensor reaches beyond its buffer")
        self._bytes_left -= header.nbytes
        self._tensors_left -= 1
        if self._bytes_left < 0 or self._tensors_left < 0:
            raise ValueError("there are more tensors than its buffer holds")
        return header


def _size(device: Any) -> int:
    """Of what there is on the device, in bytes."""
    return 0 if device is None else int(device.numel())


def _array(header: TensorHeader, memory: np.ndarray | bytes) -> np.ndarray:
    """An array over the host's buffer. Raises `ValueError` where numpy has no such dtype."""
    if header.numpy is None:
        raise ValueError(f"numpy has no {header.name}")
    return np.ndarray(header.shape, header.numpy, memory, header.offset)


def _tensor(torch: Any, header: TensorHeader, memory: Any) -> Any:
    """A tensor over the buffer that it lies in: uint8 [n], an array or bytes, or a CUDA tensor; None for no bytes."""
    if not header.nbytes:
        device = "cuda" if header.on_device else "cpu"
        return torch.empty(header.shape, dtype=getattr(torch, header.name), device=device)
    if not header.on_device and header.numpy is not None:
        return torch.from_numpy(_array(header, memory))
    flat = _flat(torch, header, memory)
    if header.name != "uint8":
        flat = flat.view(getattr(torch, header.name))
    return flat if len(header.shape) == 1 else flat.view(header.shape)


def _flat(torch: Any, header: TensorHeader, memory: Any) -> Any:
    """uint8 [nbytes]. Slicing costs about as much as all the rest, so the whole is not sliced."""
    if not header.on_device:
        return torch.from_numpy(np.ndarray((header.nbytes,), _UINT8, memory, header.offset))
    return memory if header.nbytes == memory.numel() else memory[header.offset : header.end]
