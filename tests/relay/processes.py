"""A process that sends and receives, and children that it talks to over one way."""

from __future__ import annotations

import gc
import multiprocessing
import queue
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

import pytest
import torch

from omni_python.pipeline.endpoint import Endpoint
from omni_python.proto.errors import OmniError
from omni_python.proto.messages import ControlMessage, DataReadyMessage, Peer, StreamMessage
from omni_python.proto.payload import Payload, TextOutput
from omni_python.relay.base import RelaySettings, RelayUnavailable
from omni_python.relay.ways import INLINE_LIMIT
from tests.relay import child

ROOT = Path(__file__).resolve().parents[2]
FORKS = multiprocessing.get_context("forkserver")
"""Children are forked from a process that has imported torch and done nothing else."""
FORKS.set_forkserver_preload([child.__name__])

POOL = {"cpu": 32 << 20, "cuda": 256 << 20}
"""Bytes; 64 MB are more than the whole pool on the host."""


class Parent:
    """The process of the tests themselves, with children to talk to over one way."""

    def __init__(self, way: str, directory: Path, pool: int = 0) -> None:
        self.way, _, gpus = way.partition(" ")
        on_gpu = self.way.startswith("cuda") or self.way.endswith("cuda")
        self.device = "cuda" if on_gpu else "cpu"
        self.views = self.way == "shm" or way == "cuda_shm"  # whether readers hold slots as long as what they read
        self._childs_gpu = int(gpus[-1:] or "0") if on_gpu else None
        backend = self.way.removesuffix("_cuda")
        self.backend = backend if backend in ("nixl", "mooncake", "nccl") else "shm"
        self._directory = directory
        self.replies: queue.SimpleQueue[tuple[str, str]] = queue.SimpleQueue()
        self.received: queue.SimpleQueue[Payload | OmniError] = queue.SimpleQueue()
        settings = RelaySettings(self.backend, pool or POOL[self.device], 0 if self.device == "cuda" else None)
        self.endpoint = Endpoint(directory, self._on_message, settings, host=self._host("parent"))
        self.carrier = self.endpoint.carrier
        self.endpoint.start()
        self._children: list[ForkServerProcess] = []

    def _host(self, process: str) -> str | None:
        return process if self.backend != "shm" else None

    def start_child(self) -> Other:
        endpoint = self.endpoint
        me = Peer("parent", [], endpoint.epoch, endpoint.pid, endpoint.address, self.carrier.site)
        name = f"child {len(self._children)}"
        pipe, theirs = FORKS.Pipe()
        arguments = (self._directory, self.backend, self._host(name), me, self._childs_gpu, theirs)
        process = FORKS.Process(target=child.run, args=arguments, daemon=True)
        process.start()
        theirs.close()
        peer = pipe.recv()
        endpoint.connect(peer.epoch, peer.address, peer.site)
        return Other(self, process, pipe, peer.epoch)

    def close(self) -> None:
        for process in self._children:
            process.kill()
            process.join()
        self.endpoint.stop()

    def sizes(self, sizes: list[int]) -> list[int]:
        return [size for size in sizes if self.way != "inline" or size < INLINE_LIMIT]

    def wait_empty(self) -> None:
        end = time.monotonic() + 10
        while self.carrier.slots_in_use and time.monotonic() < end:
            gc.collect()
            time.sleep(0.01)
        assert self.carrier.stats() == {name: {**stats, "slots": 0} for name, stats in self.carrier.stats().items()}, (
            "slots are still out"
        )

    def _on_message(self, message: ControlMessage) -> None:
        if isinstance(message, StreamMessage):
            reply = self.carrier.unpack(message.epoch, message.payload)
            assert isinstance(reply, TextOutput)
            self.replies.put((message.request_id, reply.text))
        elif isinstance(message, DataReadyMessage):
            assert message.payload is not None
            try:
                self.received.put(self.carrier.unpack(message.epoch, message.payload))
            except OmniError as error:
                self.received.put(error)


class Other:
    """One child."""

    def __init__(self, parent: Parent, process: ForkServerProcess, pipe: Connection, epoch: int) -> None:
        self._parent = parent
        self._process = process
        self._pipe = pipe
        self.epoch = epoch

    def send(self, payload: Payload, target: str, request_id: str = "0", chunk_id: int = -1) -> None:
        envelope = self._parent.carrier.pack(payload, [self.epoch], request_id)
        self.send_envelope(envelope, target, request_id, chunk_id)

    def send_envelope(self, envelope: Any, target: str, request_id: str = "0", chunk_id: int = -1) -> None:
        message = DataReadyMessage(self._parent.endpoint.epoch, request_id, "parent", target, envelope, chunk_id)
        self._parent.endpoint.send(self.epoch, message)

    def finish(self) -> str:
        """Let the child drop what it holds; its count of what was wrong."""
        message = DataReadyMessage(self._parent.endpoint.epoch, "end", "parent", "", None, is_done=True)
        self._parent.endpoint.send(self.epoch, message)
        while (reply := self._parent.replies.get(timeout=30))[0] != "end":
            pass
        return reply[1]

    def let_send(self, count: int, nbytes: int, delay: int = 0) -> None:
        self._pipe.send(child.Command(count, nbytes, delay))

    def kill(self) -> None:
        self._process.kill()
        self._process.join()


@contextmanager
def open_parent(way: str, pool: int = 0) -> Iterator[Parent]:
    """Skips the test where the way cannot be had here."""
    gpus = 0 if "cuda" not in way else 2 if "0-1" in way else 1
    if torch.cuda.device_count() < gpus:
        pytest.skip(f"needs {gpus} GPUs: pytest -m gpu where there are so many")
    with tempfile.TemporaryDirectory(prefix="omni-test-") as directory:
        try:
            parent = Parent(way, Path(directory), pool)
        except RelayUnavailable as error:
            pytest.skip(str(error))
        try:
            yield parent
        finally:
            parent.close()
