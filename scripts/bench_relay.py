"""Times each way from one process to another and back: a payload there, a small answer back, messages included.

A round trip is: encode, put, message; receive, decode, answer inline; receive. "in place" means that the payload was
produced in the relay's memory. The best and the median of several are printed, with payload bytes per best time.
"""

from __future__ import annotations

import argparse
import gc
import queue
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import msgspec
import numpy as np
import zmq

from omni_python.pipeline.endpoint import Endpoint
from omni_python.proto.messages import ControlMessage, DataReadyMessage, Peer, StreamMessage
from omni_python.proto.payload import Payload, TextOutput
from omni_python.relay.base import RelaySettings, RelayUnavailable

SIZES = (1 << 10, 16 << 10, 64 << 10, 1 << 20, 16 << 20, 64 << 20)
BACKENDS = ("shm", "nixl", "mooncake", "nccl")


class Block(Payload):
    data: np.ndarray


def gpu_payload() -> type[Payload]:
    """`Block` on a GPU; made when wanted, since torch is slow to import."""
    import torch

    class OnGpu(Payload):
        data: torch.Tensor

    OnGpu.__annotations__["data"] = torch.Tensor
    return OnGpu


def endpoint(directory: Path, backend: str, name: str, handle: object, pool: int, gpu: int | None) -> Endpoint:
    host = None if backend in ("shm", "cuda_shm") else name
    settings = RelaySettings("shm" if gpu is not None else backend, pool, gpu)
    return Endpoint(directory, handle, settings, host=host)  # type: ignore[arg-type]


def peer_of(end: Endpoint, name: str) -> Peer:
    return Peer(name, [], end.epoch, end.pid, end.address, end.carrier.site)


def answer(directory: Path, backend: str, pool: int, gpu: int | None) -> None:
    """The other process: unpack, drop, answer."""
    if gpu is not None:
        gpu_payload()
    parent = msgspec.msgpack.decode(bytes.fromhex(sys.stdin.readline()), type=Peer)

    def handle(message: ControlMessage) -> None:
        assert isinstance(message, DataReadyMessage) and message.payload is not None
        carrier.unpack(message.epoch, message.payload)
        envelope = carrier.pack(TextOutput("x"), [parent.epoch])
        end.send(parent.epoch, StreamMessage(end.epoch, message.request_id, "child", envelope))

    end = endpoint(directory, backend, "child", handle, pool, gpu)
    carrier = end.carrier
    end.connect(parent.epoch, parent.address, parent.site)
    end.start()
    print(msgspec.msgpack.encode(peer_of(end, "child")).hex(), flush=True)
    sys.stdin.readline()


class Bench:
    def __init__(self, directory: Path, backend: str, pool: int, gpus: tuple[int, int] | None) -> None:
        self.backend = backend
        self._answers: queue.SimpleQueue[None] = queue.SimpleQueue()
        self.end = endpoint(directory, backend, "parent", self._on_message, pool, gpus[0] if gpus else None)
        self.end.start()
        command = [sys.executable, __file__, "--answer", str(directory), backend, "--pool-mb", str(pool >> 20)]
        if gpus:
            command += ["--gpus", f"{gpus[1]},{gpus[1]}"]
        self._child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self._child.stdin is not None and self._child.stdout is not None
        self._child.stdin.write(msgspec.msgpack.encode(peer_of(self.end, "parent")).hex() + "\n")
        self._child.stdin.flush()
        peer = msgspec.msgpack.decode(bytes.fromhex(self._child.stdout.readline()), type=Peer)
        self.end.connect(peer.epoch, peer.address, peer.site)
        self._reader = peer.epoch

    def close(self) -> None:
        self._child.communicate("\n")
        self.end.stop()

    def round_trip(self, payload: Payload) -> float:
        start = time.perf_counter()
        envelope = self.end.carrier.pack(payload, [self._reader])
        self.end.send(self._reader, DataReadyMessage(self.end.epoch, "", "parent", "child", envelope))
        self._answers.get(timeout=60)
        return time.perf_counter() - start

    def in_place(self, nbytes: int) -> float:
        """A round trip of what was produced in a slot beforehand."""
        allocation = self.end.carrier.alloc(nbytes, [self._reader])
        allocation.memory[:64] = 1
        return self.round_trip(Block(allocation.memory))

    def _on_message(self, message: ControlMessage) -> None:
        if isinstance(message, StreamMessage):
            self._answers.put(None)


def measure(what: str, nbytes: int, once: object, repeat: int, limit: float) -> None:
    times = []
    end = time.perf_counter() + limit
    for number in range(repeat + 3):
        taken = once()  # type: ignore[operator]
        if number >= 3 or repeat < 4:
            times.append(taken)
        if time.perf_counter() > end and len(times) > 4:
            break
    best, median = min(times), statistics.median(times)
    print(
        f"{what:22s} {nbytes / 1024:9.0f} KB   best {best * 1e6:9.0f} us   median {median * 1e6:9.0f} us   "
        f"{nbytes / best / 1e9:6.2f} GB/s",
        flush=True,
    )


def bare_messages(directory: Path) -> None:
    """A ZMQ round trip of 300 bytes and nothing else: what every way needs at the least."""
    code = (
        "import zmq, sys; c = zmq.Context(); r = c.socket(zmq.PULL); r.bind(sys.argv[1] + '/there')\n"
        "s = c.socket(zmq.PUSH); s.connect(sys.argv[1] + '/back')\nwhile m := r.recv(): s.send(m)"
    )
    child = subprocess.Popen([sys.executable, "-c", code, f"ipc://{directory}"])
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    receive, send = context.socket(zmq.PULL), context.socket(zmq.PUSH)
    receive.bind(f"ipc://{directory}/back")
    send.connect(f"ipc://{directory}/there")

    def once() -> float:
        start = time.perf_counter()
        send.send(bytes(300))
        receive.recv()
        return time.perf_counter() - start

    measure("messages alone", 300, once, 2000, 5)
    send.send(b"")
    child.wait()
    context.destroy()


def memcpy(nbytes: int) -> float:
    """One copy into shared pages that are mapped already, by one thread: what no copying relay can beat."""
    target, source = _memcpy_buffers(nbytes)
    start = time.perf_counter()
    np.copyto(target, source)
    return time.perf_counter() - start


_buffers: dict[int, tuple[np.ndarray, np.ndarray]] = {}


def _memcpy_buffers(nbytes: int) -> tuple[np.ndarray, np.ndarray]:
    if nbytes not in _buffers:
        from omni_python.relay.shm import Segment

        _buffers.clear()
        _buffers[nbytes] = (Segment(nbytes).memory[:nbytes], np.ones(nbytes, np.uint8))
    return _buffers[nbytes]


def bench_host(directory: Path, backend: str, pool: int, seconds: float) -> None:
    try:
        bench = Bench(directory, backend, pool, None)
    except RelayUnavailable as error:
        print(f"{backend}: not run: {error}")
        return
    try:
        for size in SIZES:
            if backend != "shm" and size < 64 << 10:
                continue  # these go inline, whatever the backend
            if backend == "shm":
                measure("memcpy", size, lambda size=size: memcpy(size), 200, seconds)
            block = Block(np.ones(size - 64, np.uint8) if size <= 16 << 10 else np.ones(size, np.uint8))
            way = "inline" if size <= 16 << 10 else f"{backend}, view"
            measure(way, size, lambda block=block: bench.round_trip(block), 400, seconds)
            if size > 16 << 10:
                measure(f"{backend}, in place", size, lambda size=size: bench.in_place(size), 400, seconds)
            gc.collect()
    finally:
        bench.close()


def bench_gpu(directory: Path, gpus: tuple[int, int], pool: int, seconds: float) -> None:
    import torch

    on_gpu = gpu_payload()
    bench = Bench(directory, "cuda_shm", pool, gpus)
    try:
        for size in SIZES:
            payload = on_gpu(torch.ones(size, dtype=torch.uint8, device=f"cuda:{gpus[0]}"))
            measure(f"cuda_shm {gpus[0]}->{gpus[1]}", size, lambda p=payload: bench.round_trip(p), 400, seconds)
    finally:
        bench.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("backends", nargs="*", default=list(BACKENDS), help=f"of {', '.join(BACKENDS)} (all)")
    parser.add_argument("--seconds", type=float, default=2.0, help="for each line at most")
    parser.add_argument("--pool-mb", type=int, default=320, help="of each process's pool")
    parser.add_argument("--gpus", help="A,B: time cuda_shm from GPU A to GPU B instead (0,0: within one)")
    parser.add_argument("--answer", nargs=2, help=argparse.SUPPRESS)
    args = parser.parse_args()
    pool = args.pool_mb << 20
    gpus = tuple(int(gpu) for gpu in args.gpus.split(",")) if args.gpus else None
    if args.answer:
        answer(Path(args.answer[0]), args.answer[1], pool, gpus[0] if gpus else None)
        return
    with tempfile.TemporaryDirectory(prefix="omni-bench-") as directory:
        if gpus:
            bench_gpu(Path(directory), (gpus[0], gpus[-1]), pool, args.seconds)
            return
        bare_messages(Path(directory))
        for backend in args.backends:
            bench_host(Path(directory), backend, pool, args.seconds)


if __name__ == "__main__":
    main()
