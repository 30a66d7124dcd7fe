"""Payloads for the relay's tests, the same in every process."""

from __future__ import annotations

import hashlib

import numpy as np
import torch

from omni_python.proto.payload import Payload

DTYPES = (
    torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.uint16, torch.uint32, torch.uint64,
    torch.float16, torch.float32, torch.float64, torch.bool, torch.bfloat16, torch.complex64, torch.complex128,
    torch.float8_e4m3fn, torch.float8_e5m2,
)  # fmt: skip


class Tensors(Payload):
    """`array` stays on the host whatever the device of `tensors`."""

    tensors: dict[str, torch.Tensor]
    array: np.ndarray

    @classmethod
    def of_bytes(cls, nbytes: int, seed: int, device: str = "cpu") -> Tensors:
        """`nbytes` fresh bytes in one tensor."""
        data = np.random.default_rng(seed).integers(0, 256, nbytes, np.uint8)
        return cls({"data": torch.from_numpy(data).to(device)}, np.arange(3))

    @classmethod
    def of_all_dtypes(cls, count: int, seed: int, device: str = "cpu") -> Tensors:
        """One tensor [count] of each dtype, of fresh bytes."""
        tensors = {}
        for number, dtype in enumerate(DTYPES):
            raw = torch.from_numpy(np.random.default_rng([seed, number]).integers(0, 256, 16 * (count + 1), np.uint8))
            flat = (raw > 127) if dtype is torch.bool else raw.view(dtype)
            tensors[str(dtype)] = flat[:count].to(device)
        return cls(tensors, np.arange(4.0))


def digest(payload: Payload) -> str:
    """Equal for payloads that are equal in names, dtypes, shapes, kind of device and every byte."""
    assert isinstance(payload, Tensors)
    total = hashlib.blake2b(payload.array.tobytes(), digest_size=16)
    for name, tensor in payload.tensors.items():
        total.update(f"{name} {tensor.dtype} {tuple(tensor.shape)} {tensor.device.type}".encode())
        real = torch.view_as_real(tensor) if tensor.is_complex() else tensor
        total.update(real.contiguous().reshape(-1).view(torch.uint8).cpu().numpy().tobytes())
    return total.hexdigest()


def chunk(request_id: str, number: int, device: str = "cpu") -> Tensors:
    """A chunk of a stream, small or large in turns, that says which it is."""
    size = (100, 20_000, 70_000, 5_000)[(int(request_id) + number) % 4]
    marks = torch.full((size // 4,), int(request_id) * 100 + number, dtype=torch.int32, device=device)
    return Tensors({"marks": marks}, np.array([number]))


def is_chunk(payload: Payload, request_id: str, number: int) -> bool:
    assert isinstance(payload, Tensors)
    expected = chunk(request_id, number)
    return torch.equal(payload.tensors["marks"].cpu(), expected.tensors["marks"]) and payload.array[0] == number
