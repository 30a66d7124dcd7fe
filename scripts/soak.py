"""Many requests, some of them cancelled at random moments; memory and what is held must stay flat after warming up.

    scripts/soak [--pipeline noop|tiny] [--requests 20000] [--cancelled 0.2] [--concurrency 16] [--allow-mb 8]

Prints a table of the resident memory of every process, the sizes of shared-memory regions, file descriptors and threads
at ten moments. The exit status is 1 where a process's memory grew by more than `--allow-mb` MiB from a quarter of the
requests to the end, or anything is still held at the end, or a request that was not cancelled failed.
"""

from __future__ import annotations

import argparse
import itertools
import random
import sys
import tempfile
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

import psutil
from tests.e2e import metrics
from tests.faults.serving import name_of

from omni_python.client import OmniClient, OmniClientError
from omni_python.config.compile import compile_pipeline
from omni_python.config.schema import PipelineConfig
from omni_python.models.noop.config import NoopLinePipelineConfig
from omni_python.models.qwen3_omni.config import Qwen3OmniSpeechPipelineConfig
from omni_python.serve.triton_server import SHARED_MEMORY, ServerOptions, TritonServer

MOMENTS = 10
MB = 1 << 20


@dataclass(frozen=True)
class Moment:
    """MiB by process, MiB in /dev/shm, file descriptors and threads of all, after `done` requests."""

    done: int
    resident: dict[str, float]
    shared: float
    fds: int
    threads: int


@dataclass
class Counts:
    finished: int = 0
    cancelled: int = 0
    failed: list[str] = field(default_factory=list)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pipeline", choices=("noop", "tiny"), default="noop")
    parser.add_argument("--requests", type=int, default=20_000)
    parser.add_argument("--cancelled", type=float, default=0.2)
    parser.add_argument("--concurrency", type=int, default=16)
    parser.add_argument("--allow-mb", type=float, default=8.0)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="omni-soak-") as folder:
        config = pipeline(args.pipeline, Path(folder))
        compile_pipeline(config, Path(folder) / "models")
        with TritonServer.start(ServerOptions(model_repository=Path(folder) / "models"), timeout_s=300) as server:
            moments, counts = soak(server, config.resolved_name, args)
            metrics.wait_empty(server, config.resolved_name, timeout=30)
    return report(moments, counts, args.allow_mb)


def pipeline(name: str, folder: Path) -> PipelineConfig:
    if name == "noop":
        return NoopLinePipelineConfig()
    from omni_python.models.qwen3_omni.tiny import build

    build(folder / "tiny")
    return Qwen3OmniSpeechPipelineConfig(model_path=str(folder / "tiny"))


def soak(server: TritonServer, name: str, args: argparse.Namespace) -> tuple[list[Moment], Counts]:
    counts, numbers, lock = Counts(), itertools.count(), threading.Lock()

    def work() -> None:
        with OmniClient(server.grpc_url, name) as client:
            while next(numbers) < args.requests:
                one(client, args.pipeline, random.random() < args.cancelled, counts, lock)

    threads = [threading.Thread(target=work) for _ in range(args.concurrency)]
    for thread in threads:
        thread.start()
    moments: list[Moment] = []
    while any(thread.is_alive() for thread in threads):
        done = counts.finished + counts.cancelled + len(counts.failed)
        if done >= args.requests * len(moments) / MOMENTS:
            moments.append(moment(server, done))
            print_moment(moments[-1], first=len(moments) == 1)
        time.sleep(0.2)
    time.sleep(2)
    moments.append(moment(server, args.requests))
    print_moment(moments[-1])
    return moments, counts


def one(client: OmniClient, kind: str, cancel: bool, counts: Counts, lock: threading.Lock) -> None:
    sampling = noop_sampling(cancel) if kind == "noop" else {"max_tokens": 8, "talker": {"max_tokens": 12}}
    try:
        events = client.stream("Say something.", sampling=sampling)
        if cancel:
            next(events, None)
            time.sleep(random.random() * 0.05)
            events.close()
        else:
            list(events)
    except OmniClientError as error:
        with lock:
            counts.failed.append(str(error))
        return
    with lock:
        counts.cancelled += cancel
        counts.finished += not cancel


def noop_sampling(cancel: bool) -> dict[str, float]:
    return {"nbytes": random.choice((0, 1000, 100_000, 2_000_000)), "delay": 0.03 if cancel else 0.0}


def moment(server: TritonServer, done: int) -> Moment:
    processes = [psutil.Process(server.process.pid), *psutil.Process(server.process.pid).children(recursive=True)]
    return Moment(
        done,
        {name_of(process): process.memory_info().rss / MB for process in processes},
        sum(region.stat().st_size for region in SHARED_MEMORY.glob(f"{server.name}_*")) / MB,
        sum(process.num_fds() for process in processes),
        sum(process.num_threads() for process in processes),
    )


def print_moment(now: Moment, first: bool = False) -> None:
    if first:
        print("MiB: " + " ".join(f"{name[-16:]:>16}" for name in now.resident), f"{'/dev/shm':>9} {'fds':>5} threads")
    figures = " ".join(f"{mb:16.1f}" for mb in now.resident.values())
    print(f"{now.done:>6d} {figures} {now.shared:9.1f} {now.fds:5d} {now.threads:7d}", flush=True)


def report(moments: list[Moment], counts: Counts, allow_mb: float) -> int:
    warm, last = moments[len(moments) // 4], moments[-1]
    grown = {name: last.resident[name] - mb for name, mb in warm.resident.items() if name in last.resident}
    grown["/dev/shm"] = last.shared - warm.shared
    print(f"{counts.finished} finished, {counts.cancelled} cancelled, {len(counts.failed)} failed")
    for error in sorted(set(counts.failed))[:10]:
        print("  failed:", error)
    print("growth since warm, MiB:", ", ".join(f"{name} {mb:+.1f}" for name, mb in grown.items()))
    bad = [name for name, mb in grown.items() if mb > allow_mb]
    if bad:
        print(f"grew by more than {allow_mb:g} MiB:", ", ".join(bad))
    return 1 if bad or counts.failed else 0


if __name__ == "__main__":
    sys.exit(main())
