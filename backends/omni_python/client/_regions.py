"""Memory that a client on the server's host shares with it, so that large inputs do not go through a socket.

A no-op pipeline took a video of 100 MB in 0.33 s instead of 0.81 s (two CPU cores, Triton 24.10), of which the client's
part was 0.05 s instead of 0.46; at 16 MB it was 54 ms instead of 112, at 1 MB there was no difference.
"""

from __future__ import annotations

import base64
import contextlib
import os
import secrets
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol, get_args

import numpy as np
from tritonclient.grpc import service_pb2
from tritonclient.utils import np_to_triton_dtype

from omni_python.client._errors import NotSupported

SharedMemory = Literal["system", "cuda"]
"""Which memory: the host's, or that of its first GPU."""

SHARED_FROM_BYTES = 1 << 20
"""Smaller inputs go inside the request: sharing costs two calls more, about a millisecond."""

_CALL_S = 5.0
"""Patience for making a region known; a server maps it in milliseconds."""

_RELEASE_S = 5.0
"""Patience for the server to be done with a region: milliseconds after the answer; after a cancellation, the time until
the orchestrator sees it."""

_FOLDER = Path("/dev/shm")


def checked_kind(kind: SharedMemory | None, over_http: bool) -> SharedMemory | None:
    """`kind`. Raises ValueError where it is none, and over HTTP, where there is no such thing."""
    if kind is not None and kind not in get_args(SharedMemory):
        raise ValueError(f"shared_memory: {kind!r} is not one of {', '.join(get_args(SharedMemory))}")
    if kind is not None and over_http:
        raise ValueError("shared_memory needs the server's gRPC service: an address host:port without http://")
    return kind


class Region(Protocol):
    """Some bytes that the server can map. A name is never used twice, so that only this host's server can have it."""

    name: str
    kind: SharedMemory

    def registration(self) -> Any:
        """Triton's message that makes the region known."""

    def hide(self) -> None:
        """Where that can be, let nobody map the region from now on; a server that did keeps it."""

    def close(self) -> None:
        """Give the memory back, when the server has let go of it."""


@dataclass(frozen=True)
class SharedTensor:
    """An input that lies in a region: `nbytes` from `offset`, in Triton's encoding of `datatype`."""

    datatype: str
    shape: tuple[int, ...]
    region: str
    offset: int
    nbytes: int


InputTensor = np.ndarray | SharedTensor


class SystemRegion:
    """A file in /dev/shm, which loses its name as soon as the server has mapped it, so that none stays behind.

    Raises `NotSupported` where /dev/shm has no room.
    """

    kind: SharedMemory = "system"

    def __init__(self, pieces: Iterable[bytes | memoryview]) -> None:
        self._nbytes = 0
        self.name = f"omni_client_{os.getpid()}_{secrets.token_hex(8)}"
        self._path = _FOLDER / self.name
        file = os.open(self._path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600)
        try:
            # Written and not mapped: a full /dev/shm is then an error, and not the end of this process by SIGBUS.
            with open(file, "wb") as region:
                for piece in pieces:
                    self._nbytes += region.write(piece)
        except OSError as error:
            self.hide()
            raise NotSupported(
                f"{_FOLDER} has no room for the inputs ({error.strerror}): make it larger, or leave shared_memory out"
            ) from None
        except BaseException:
            self.hide()
            raise

    def registration(self) -> Any:
        return service_pb2.SystemSharedMemoryRegisterRequest(
            name=self.name, key=f"/{self.name}", offset=0, byte_size=self._nbytes
        )

    def close(self) -> None:
        self.hide()

    def hide(self) -> None:
        with contextlib.suppress(FileNotFoundError):
            self._path.unlink()


class CudaRegion:
    """Memory of the first GPU, shared by its CUDA IPC handle.

    Raises `NotSupported` without the package cuda-bindings or a GPU.
    """

    kind: SharedMemory = "cuda"
    _DEVICE = 0

    def __init__(self, pieces: Iterable[bytes | memoryview]) -> None:
        try:
            from tritonclient.utils import cuda_shared_memory
        except RuntimeError:
            raise NotSupported('shared_memory="cuda" needs the package cuda-bindings: the extra cuda') from None
        contents = np.frombuffer(b"".join(pieces), np.uint8)
        self._nbytes = len(contents)
        self._cuda = cuda_shared_memory
        self.name = f"omni_client_{os.getpid()}_{secrets.token_hex(8)}"
        try:
            self._memory = cuda_shared_memory.create_shared_memory_region(self.name, self._nbytes, self._DEVICE)
        except cuda_shared_memory.CudaSharedMemoryException as error:
            raise NotSupported(
                f'shared_memory="cuda" needs a GPU with {self._nbytes >> 20} MiB free: {error}'
            ) from None
        try:
            cuda_shared_memory.set_shared_memory_region(self._memory, [contents])
        except BaseException:
            self.close()
            raise

    def registration(self) -> Any:
        return service_pb2.CudaSharedMemoryRegisterRequest(
            name=self.name,
            raw_handle=base64.b64decode(self._cuda.get_raw_handle(self._memory)),
            device_id=self._DEVICE,
            byte_size=self._nbytes,
        )

    def hide(self) -> None:
        pass

    def close(self) -> None:
        self._cuda.destroy_shared_memory_region(self._memory)
        del self._memory


def register(stub: Any, region: Region) -> Any:
    """Make a region known by a server's gRPC stub; of a stub for asyncio, what to await for that."""
    call = stub.SystemSharedMemoryRegister if region.kind == "system" else stub.CudaSharedMemoryRegister
    return call(region.registration(), timeout=_CALL_S)


def unregister(stub: Any, region: Region) -> Any:
    """Let the server unmap a region, which it refuses as long as a request reads it; otherwise as `register`."""
    if region.kind == "system":
        request = service_pb2.SystemSharedMemoryUnregisterRequest(name=region.name)
        return stub.SystemSharedMemoryUnregister(request, timeout=_CALL_S)
    return stub.CudaSharedMemoryUnregister(
        service_pb2.CudaSharedMemoryUnregisterRequest(name=region.name), timeout=_CALL_S
    )


def waits() -> Iterator[float]:
    """Seconds to sleep before each further try to unregister a region that is still read."""
    end = time.monotonic() + _RELEASE_S
    wait = 0.001
    while time.monotonic() < end:
        yield wait
        wait = min(2 * wait, 0.05)


def shared(inputs: Mapping[str, np.ndarray], kind: SharedMemory | None) -> tuple[dict[str, InputTensor], Region | None]:
    """The inputs, the large ones in a new region if `kind` asks for it; the caller closes it.

    Raises `NotSupported` where there is no such memory.
    """
    result: dict[str, InputTensor] = dict(inputs)
    large = [name for name, array in inputs.items() if kind is not None and _nbytes(array) >= SHARED_FROM_BYTES]
    if not large:
        return result, None
    pieces: list[bytes | memoryview] = []
    tensors = []
    offset = 0
    for name in large:
        encoded = _encoded(inputs[name])
        nbytes = sum(len(piece) for piece in encoded)
        tensors.append((name, offset, nbytes))
        pieces += encoded
        offset += nbytes
    region: Region = SystemRegion(pieces) if kind == "system" else CudaRegion(pieces)
    for name, offset, nbytes in tensors:
        array = inputs[name]
        result[name] = SharedTensor(np_to_triton_dtype(array.dtype), array.shape, region.name, offset, nbytes)
    return result, region


def _nbytes(array: np.ndarray) -> int:
    return sum(len(item) for item in array.flat) if array.dtype == np.object_ else array.nbytes


def _encoded(array: np.ndarray) -> list[bytes | memoryview]:
    """A tensor's bytes in order, without a copy: as Triton has it, elements of BYTES follow their lengths (uint32)."""
    if array.dtype != np.object_:
        return [np.ascontiguousarray(array).data.cast("B")]
    return [piece for item in array.flat for piece in (len(item).to_bytes(4, "little"), item)]
