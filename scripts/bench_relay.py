"""Times each way from one process to another and back: a payload there, a small answer back, messages included.

    scripts/bench_relay                     the ways between processes on the CPU, beside memcpy and bare messages
    scripts/bench_relay --gpus 0,0          within one GPU, beside torch's own CUDA IPC (a handle for each tensor)
    scripts/bench_relay --gpus 0,1          from one GPU to another, beside a plain copy between them
    scripts/bench_relay --triton --gpus 0,0 between the stubs of a real tritonserver (needs the server)

A round trip is: encode, put, message; receive, decode, answer inline; receive, up to the call of the process's handler.
"in place" means that the payload was produced in the relay's memory, "view" that the reader does not copy, "there" that
the reader's GPU has been waited for, so that all bytes have arrived; "flowing" that three such are under way at a time.
The best and the median of several are printed, with payload bytes per best time, and written to `--json FILE`. Between
two GPUs the rates of what arrived are also given as a part of the plain copy's. A way that fails is reported and the
others go on; the exit status says whether one did.
"""

from __future__ import annotations

import argparse
import gc
import json
import pickle
import queue
import statistics
import subprocess
import sys
import tempfile
import time
import traceback
import urllib.request
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torch
import zmq

from omni_python.pipeline.endpoint import Endpoint
from omni_python.proto.messages import ControlMessage, DataReadyMessage, Peer, StreamMessage
from omni_python.proto.payload import Payload, TextOutput
from omni_python.relay.base import RelaySettings, RelayUnavailable
from omni_python.relay.shm import Segment

KB, MB = 1 << 10, 1 << 20
SIZES = (KB, 16 * KB, 64 * KB, MB, 16 * MB, 64 * MB)
GPU_SIZES = (KB, 64 * KB, MB, 16 * MB, 64 * MB, 256 * MB)
INLINE = 16 * KB
FLOW, WINDOW = 24, 3
FLOWING = ", in place, flowing"
BACKENDS = ("shm", "nixl", "mooncake", "nccl")
HOSTS = {"nixl", "mooncake", "nccl", "nixl_cuda", "nccl_cuda"}
"""Ways that only go between hosts; here each process says that it is one."""

PLAIN_COPY = "plain copy"

Gpus = tuple[int, int]


class Block(Payload):
    data: np.ndarray


class GpuBlock(Payload):
    data: torch.Tensor


@dataclass
class Row:
    """Times of a round trip in microseconds."""

    way: str
    nbytes: int
    best_us: float
    median_us: float
    gb_per_s: float


class Report:
    def __init__(self, seconds: float) -> None:
        self.rows: list[Row] = []
        self.failures: dict[str, str] = {}
        self._seconds = seconds

    def measure(self, way: str, nbytes: int, once: Callable[[], float], repeat: int = 400) -> None:
        """Repeat `once`, which returns seconds, `repeat` times or until the time for a line is over."""
        times = []
        end = time.perf_counter() + self._seconds
        for number in range(repeat + 3):
            taken = once()
            if number >= 3:
                times.append(taken)
            if time.perf_counter() > end and len(times) > 4:
                break
        best, median = min(times), statistics.median(times)
        self.rows.append(Row(way, nbytes, best * 1e6, median * 1e6, nbytes / best / 1e9))
        print(
            f"{way:32s} {nbytes / KB:9.0f} KB   best {best * 1e6:9.1f} us   median {median * 1e6:9.1f} us   "
            f"{nbytes / best / 1e9:7.2f} GB/s",
            flush=True,
        )

    def attempt(self, what: str, run: Callable[[], None]) -> None:
        try:
            run()
        except RelayUnavailable as error:
            print(f"{what}: not run: {error}", flush=True)
            self.failures[what] = f"not run: {error}"
        except Exception:
            print(f"{what} FAILED:\n{traceback.format_exc()}", flush=True)
            self.failures[what] = traceback.format_exc()

    def print_ratios(self) -> None:
        """What part of the plain copy's rate reaches the other GPU."""
        plain = {row.nbytes: row.best_us for row in self.rows if row.way == PLAIN_COPY}
        for row in self.rows:
            if row.way.endswith((", there", FLOWING)) and row.nbytes in plain:
                part = plain[row.nbytes] / row.best_us
                print(f"{row.way:32s} {size_name(row.nbytes):>11s} {part:7.0%} of the plain copy's rate")

    def print_table(self) -> None:
        """Best times, a row a way and a column a size."""
        sizes = sorted({row.nbytes for row in self.rows})
        print(f"\n{'best, us':32s}" + "".join(f"{size_name(size):>11s}" for size in sizes))
        for way in dict.fromkeys(row.way for row in self.rows):
            best = {row.nbytes: row.best_us for row in self.rows if row.way == way}
            print(f"{way:32s}" + "".join(f"{best[size]:11.0f}" if size in best else " " * 11 for size in sizes))


def size_name(nbytes: int) -> str:
    return f"{nbytes // MB} MB" if nbytes >= MB else f"{nbytes // KB} KB" if nbytes >= KB else f"{nbytes} B"


# -- the two processes


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
    """This process and another, with one way between them."""

    def __init__(self, directory: Path, way: str, pool: int, gpus: Gpus | None = None) -> None:
        self.way = way
        self._on_gpu = gpus is not None
        self._answers: queue.SimpleQueue[float] = queue.SimpleQueue()
        self.end = endpoint(directory, way, "parent", self._on_message, pool, gpus[0] if gpus else None)
        self.end.start()
        command = [sys.executable, __file__, "--answer", str(directory), way, "--pool-mb", str(pool // MB)]
        if gpus:
            command += ["--gpus", f"{gpus[1]},{gpus[1]}"]
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


# -- what is measured


def bare_messages(report: Report, directory: Path) -> None:
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

    report.measure("bare ZMQ messages", 300, once, 2000)
    send.send(b"")
    child.wait()
    context.destroy()


def memcpy(target: np.ndarray, source: np.ndarray) -> float:
    """One copy into shared pages that are mapped already, by one thread: what no copying relay can beat."""
    start = time.perf_counter()
    np.copyto(target, source)
    return time.perf_counter() - start


def on_host(report: Report, directory: Path, backend: str, pool: int) -> None:
    with Pair(directory, backend, pool) as pair:
        for size in SIZES:
            inline = size <= INLINE
            if inline and backend != "shm":
                continue  # these go inline, whatever the backend
            if backend == "shm":
                shared = Segment(size)
                report.measure("memcpy", size, partial(memcpy, shared.memory[:size], np.ones(size, np.uint8)), 200)
                shared.close()
            block = Block(np.ones(size - 64 if inline else size, np.uint8))
            way = "inline" if inline else f"{backend}, view"
            report.measure(way, size, partial(pair.round_trip, block))
            if not inline:
                report.measure(f"{backend}, in place", size, partial(pair.in_place, size))
            gc.collect()
        pair.check_way()


def on_gpus(report: Report, directory: Path, way: str, pool: int, gpus: Gpus) -> None:
    with Pair(directory, way, pool, gpus) as pair:
        for size in GPU_SIZES:
            payload = GpuBlock(torch.ones(size, dtype=torch.uint8, device=f"cuda:{gpus[0]}"))
            if gpus[0] == gpus[1]:
                report.measure(f"{way}, view", size, partial(pair.round_trip, payload))
                report.measure(f"{way}, in place", size, partial(pair.in_place, size))
            report.measure(f"{way}, there", size, partial(pair.round_trip, payload, "there"))
            if gpus[0] != gpus[1]:
                report.measure(f"{way}, in place, there", size, partial(pair.in_place, size, "there"))
                report.measure(f"{way}{FLOWING}", size, partial(pair.flow, size))
        pair.check_way()


def peer_copy(report: Report, gpus: Gpus) -> None:
    """A copy between two tensors, waited for: what no copying relay can beat."""
    for size in GPU_SIZES:
        source = torch.ones(size, dtype=torch.uint8, device=f"cuda:{gpus[0]}")
        target = torch.empty(size, dtype=torch.uint8, device=f"cuda:{gpus[1]}")

        def once(target: torch.Tensor = target, source: torch.Tensor = source) -> float:
            torch.cuda.synchronize(gpus[0])
            start = time.perf_counter()
            target.copy_(source)
            torch.cuda.synchronize(gpus[0])
            torch.cuda.synchronize(gpus[1])
            return time.perf_counter() - start

        report.measure(PLAIN_COPY, size, once)


def torch_ipc(report: Report, directory: Path, gpus: Gpus) -> None:
    """torch.multiprocessing's reductions: a fresh tensor each time, pickled with its handle, over the same sockets."""
    from multiprocessing.reduction import ForkingPickler

    import torch.multiprocessing  # registers the reductions

    command = [sys.executable, __file__, "--answer", str(directory), "torch", "--gpus", f"{gpus[1]},{gpus[1]}"]
    child = subprocess.Popen(command)
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    receive, send = context.socket(zmq.PULL), context.socket(zmq.PUSH)
    receive.bind(f"ipc://{directory}/back")
    receive.setsockopt(zmq.RCVTIMEO, 60_000)
    send.connect(f"ipc://{directory}/there")

    def once(size: int) -> float:
        tensor = torch.ones(size, dtype=torch.uint8, device=f"cuda:{gpus[0]}")
        start = time.perf_counter()
        send.send(bytes(ForkingPickler.dumps(tensor)))
        receive.recv()
        return time.perf_counter() - start

    try:
        for size in GPU_SIZES:
            report.measure("torch, a handle a tensor", size, partial(once, size))
        send.send(b"")
        child.wait(20)
    finally:
        child.kill()
        context.destroy(linger=0)


def torch_answer(directory: Path, gpu: int) -> None:
    import torch.multiprocessing

    torch.zeros(1, device=f"cuda:{gpu}")
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    receive, send = context.socket(zmq.PULL), context.socket(zmq.PUSH)
    receive.bind(f"ipc://{directory}/there")
    send.connect(f"ipc://{directory}/back")
    while frame := receive.recv():
        tensor = pickle.loads(frame)
        del tensor
        send.send(b"x")


def in_triton(report: Report, gpus: Gpus | None) -> None:
    """Two edges of the no-op line, from when the first stage hands over to when the third has it, in real stubs."""
    from omni_python.client import OmniClient
    from omni_python.config.compile import compile_pipeline
    from omni_python.models.noop.config import NoopLinePipelineConfig
    from omni_python.models.noop.gpu import on_gpus
    from omni_python.serve.triton_server import ServerOptions, TritonServer

    config = NoopLinePipelineConfig() if gpus is None else on_gpus(*gpus)
    where = "on the host" if gpus is None else f"on GPU {gpus[0]}" if gpus[0] == gpus[1] else f"GPU {gpus}"
    with tempfile.TemporaryDirectory(prefix="omni-bench-") as folder:
        compile_pipeline(config, Path(folder))
        with (
            TritonServer.start(ServerOptions(model_repository=Path(folder))) as server,
            OmniClient(server.grpc_url, "noop_line") as client,
        ):

            def once(size: int) -> float:
                answered = json.loads(client.chat("x", sampling={"nbytes": size, "timed": True}).text)
                return float(answered["two_edges_us"]) / 1e6

            for size in (*SIZES, *((256 * MB,) if gpus else ())):
                report.measure(f"two edges in Triton, {where}", size, partial(once, size), 60)
            with urllib.request.urlopen(f"http://{server.host}:{server.metrics_port}/metrics", timeout=10) as reply:
                print("\n".join(line for line in reply.read().decode().splitlines() if "edge_payloads" in line))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("backends", nargs="*", default=list(BACKENDS), help=f"of {', '.join(BACKENDS)} (all)")
    parser.add_argument("--seconds", type=float, default=2.0, help="for each line at most")
    parser.add_argument("--pool-mb", type=int, help="of each process's pool (320, on GPUs 1600)")
    parser.add_argument("--gpus", help="A,B: from GPU A to GPU B (0,0: within one)")
    parser.add_argument("--triton", action="store_true", help="between the stubs of a tritonserver")
    parser.add_argument("--json", type=Path, help="write the figures here")
    parser.add_argument("--answer", nargs=2, help=argparse.SUPPRESS)
    args = parser.parse_args()
    numbers = [int(gpu) for gpu in args.gpus.split(",")] if args.gpus else []
    gpus = (numbers[0], numbers[-1]) if numbers else None
    pool = (args.pool_mb or (1600 if gpus else 320)) * MB
    if args.answer:
        directory, way = args.answer
        if way == "torch":
            torch_answer(Path(directory), numbers[0])
        else:
            answer(Path(directory), way, pool, gpus[0] if gpus else None)
        return
    report = Report(args.seconds)
    with tempfile.TemporaryDirectory(prefix="omni-bench-") as folder:
        directory = Path(folder)
        if args.triton:
            report.attempt("tritonserver", partial(in_triton, report, gpus))
        elif gpus:
            report.attempt("bare ZMQ messages", partial(bare_messages, report, directory))
            if gpus[0] == gpus[1]:
                report.attempt("torch", partial(torch_ipc, report, directory, gpus))
            else:
                report.attempt(PLAIN_COPY, partial(peer_copy, report, gpus))
            for way in ("cuda_shm", "nixl_cuda", *(("nccl_cuda",) if gpus[0] != gpus[1] else ())):
                report.attempt(way, partial(on_gpus, report, directory, way, pool, gpus))
        else:
            report.attempt("bare ZMQ messages", partial(bare_messages, report, directory))
            for backend in args.backends:
                report.attempt(backend, partial(on_host, report, directory, backend, pool))
    report.print_table()
    report.print_ratios()
    if args.json:
        args.json.write_text(
            json.dumps({"rows": [asdict(row) for row in report.rows], "failures": report.failures}, indent=1)
        )
    if any(not text.startswith("not run") for text in report.failures.values()):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
