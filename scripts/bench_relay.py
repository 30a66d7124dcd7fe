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
import subprocess
import sys
import tempfile
import time
import urllib.request
from functools import partial
from pathlib import Path

import numpy as np
import torch
import zmq
from relay_pair import BACKENDS, Block, GpuBlock, Pair, answer
from relay_report import FLOWING, KB, MB, PLAIN_COPY, THERE, Report

from omni_python.relay.shm import Segment

SIZES = (KB, 16 * KB, 64 * KB, MB, 16 * MB, 64 * MB)
GPU_SIZES = (KB, 64 * KB, MB, 16 * MB, 64 * MB, 256 * MB)
INLINE = 16 * KB

Gpus = tuple[int, int]


def pair(directory: Path, way: str, pool: int, gpus: Gpus | None = None) -> Pair:
    """This process and this script, run once more."""
    command = [sys.executable, __file__, "--answer", str(directory), way, "--pool-mb", str(pool // MB)]
    if gpus is None:
        return Pair(directory, way, pool, None, command)
    return Pair(directory, way, pool, gpus[0], [*command, "--gpus", f"{gpus[1]},{gpus[1]}"])


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
    with pair(directory, backend, pool) as both:
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
            report.measure(way, size, partial(both.round_trip, block))
            if not inline:
                report.measure(f"{backend}, in place", size, partial(both.in_place, size))
            gc.collect()
        both.check_way()


def on_gpus(report: Report, directory: Path, way: str, pool: int, gpus: Gpus) -> None:
    with pair(directory, way, pool, gpus) as both:
        for size in GPU_SIZES:
            payload = GpuBlock(torch.ones(size, dtype=torch.uint8, device=f"cuda:{gpus[0]}"))
            if gpus[0] == gpus[1]:
                report.measure(f"{way}, view", size, partial(both.round_trip, payload))
                report.measure(f"{way}, in place", size, partial(both.in_place, size))
            report.measure(f"{way}{THERE}", size, partial(both.round_trip, payload, "there"))
            if gpus[0] != gpus[1]:
                report.measure(f"{way}, in place{THERE}", size, partial(both.in_place, size, "there"))
                report.measure(f"{way}{FLOWING}", size, partial(both.flow, size))
        both.check_way()


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
    from omni_python.serve.server_options import ServerOptions
    from omni_python.serve.triton_server import TritonServer

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
        report.save(args.json)
    if report.failed:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
