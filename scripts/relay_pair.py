"""Two processes of one machine, with one of the relay's ways between them."""

from __future__ import annotations

import queue
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torch

from omni_python.pipeline.endpoint import Endpoint
from omni_python.proto.messages import ControlMessage, DataReadyMessage, Peer, StreamMessage
from omni_python.proto.payload import Payload, TextOutput
from omni_python.relay.base import RelaySettings

BACKENDS = ("shm", "nixl", "mooncake", "nccl")
HOSTS = {"nixl", "mooncake", "nccl", "nixl_cuda", "nccl_cuda"}
"""Ways that only go between hosts; here each process says that it is one."""

FLOW, WINDOW = 24, 3
"""Payloads that flow, and how many of them are under way at a time."""


class Block(Payload):
    data: np.ndarray


class GpuBlock(Payload):
    data: torch.Tensor


def endpoint(directory: Path, way: str, name: str, handle: Any, pool: int, gpu: int | None) -> Endpoint:
    backend = way.removesuffix("_cuda")
    settings = RelaySettings(backend if backend in BACKENDS else "shm", pool, gpu)
    return Endpoint(directory, handle, settings, host=name if way in HOSTS else None)


def peer_of(end: Endpoint, name: str) -> Peer:
    return Peer(name, [], end.epoch, end.pid, end.address, end.carrier.site)


def answer(directory: Path, way: str, pool: int, gpu: int | None) -> None:
    """The other process: unpack, wait for the GPU if told to, drop, answer."""
    parent = msgspec.msgpack.decode(bytes.fromhex(sys.stdin.readline()), type=Peer)

    def handle(message: ControlMessage) -> None:
        assert isinstance(message, DataReadyMessage) and message.payload is not None
        carrier.unpack(message.epoch, message.payload)
        if message.target == "there":
            torch.cuda.synchronize(gpu)
        envelope = carrier.pack(TextOutput("x"), [parent.epoch])
        end.send(parent.epoch, StreamMessage(end.epoch, message.request_id, "child", envelope))

    end = endpoint(directory, way, "child", handle, pool, gpu)
    carrier = end.carrier
    end.connect(parent.epoch, parent.address, parent.site)
    end.start()
    print(msgspec.msgpack.encode(peer_of(end, "child")).hex(), flush=True)
    sys.stdin.readline()
    end.stop()


class Pair:
    """This process and another, started with `command`, that runs `answer`; `gpu` is this one's, None for the CPU."""

    def __init__(self, directory: Path, way: str, pool: int, gpu: int | None, command: Sequence[str]) -> None:
        self.way = way
        self._on_gpu = gpu is not None
        self._answers: queue.SimpleQueue[float] = queue.SimpleQueue()
        self.end = endpoint(directory, way, "parent", self._on_message, pool, gpu)
        self.end.start()
        self._child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self._child.stdin is not None and self._child.stdout is not None
        self._child.stdin.write(msgspec.msgpack.encode(peer_of(self.end, "parent")).hex() + "\n")
        self._child.stdin.flush()
        peer = msgspec.msgpack.decode(bytes.fromhex(self._child.stdout.readline()), type=Peer)
        self.end.connect(peer.epoch, peer.address, peer.site)
        self._reader = peer.epoch

    def __enter__(self) -> Pair:
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self._child.communicate("\n", timeout=20)
        except subprocess.TimeoutExpired:
            self._child.kill()
        self.end.forget(self._reader)
        self.end.stop()

    def round_trip(self, payload: Payload, target: str = "") -> float:
        start = time.perf_counter()
        self._send(payload, target)
        return self._answers.get(timeout=60) - start

    def _send(self, payload: Payload, target: str) -> None:
        envelope = self.end.carrier.pack(payload, [self._reader])
        self.end.send(self._reader, DataReadyMessage(self.end.epoch, "", "parent", target, envelope))

    def in_place(self, nbytes: int, target: str = "") -> float:
        """A round trip of what was produced in a slot beforehand."""
        allocation = self.end.carrier.alloc(nbytes, [self._reader], on_gpu=self._on_gpu)
        allocation.memory[:64] = 1
        return self.round_trip((GpuBlock if self._on_gpu else Block)(allocation.memory), target)

    def flow(self, nbytes: int) -> float:
        """Seconds a payload of `FLOW`, each produced in a slot as it goes, `WINDOW` of them under way at a time."""
        start = time.perf_counter()
        for number in range(FLOW):
            if number >= WINDOW:
                self._answers.get(timeout=60)
            allocation = self.end.carrier.alloc(nbytes, [self._reader], on_gpu=True)
            allocation.memory[:64] = 1
            self._send(GpuBlock(allocation.memory), "there")
        for _ in range(WINDOW):
            last = self._answers.get(timeout=60)
        return (last - start) / FLOW

    def check_way(self) -> None:
        carried = self.end.carrier.carried
        if not carried[self.way]:
            raise RuntimeError(f"nothing went over {self.way}, but {dict(carried)}")

    def _on_message(self, message: ControlMessage) -> None:
        if isinstance(message, StreamMessage):
            self._answers.put(time.perf_counter())
