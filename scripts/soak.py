"""Many requests, some of them cancelled at random moments; memory and what is held must stay flat after warming up.

    scripts/soak [--pipeline noop|tiny] [--requests 20000] [--cancelled 0.2] [--concurrency 16] [--allow-mb 8]

Prints the memory of every process (this one, the client, among them), what the server has in /dev/shm, file
descriptors and threads: as they were after warming up (a quarter of the requests, or 200 of them, or half where they
are fewer than 400), at the end, and how they rose in between, per thousand requests. The exit status is 1 where a
process or /dev/shm grew by more than `--allow-mb` MiB, where descriptors or threads grew by more than a tenth, where
anything is still held at the end, where a request failed that was not cancelled, where none ended as aborted although
some were cancelled, or where the server ended by itself (why, its log tells).

On a CPU, oneDNN compiles a convolution's kernel for every new shape and keeps the last 1,024 of them. Vocoder windows
come in more shapes than that, so by default that cache grows for thousands of requests, by 60 MiB in the tiny model's
speech process, and then stays. Here it may keep `KEPT_KERNELS`: it is full after warming up, and what grows after that
has no bound. (`ONEDNN_PRIMITIVE_CACHE_CAPACITY` in the environment says otherwise; few kernels cost CPU time.)
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import os
import random
import re
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
from tests.e2e import metrics
from tests.faults.serving import name_of

from omni_python.client import AsyncOmniClient, OmniClientError
from omni_python.config.compile import compile_pipeline
from omni_python.config.schema import PipelineConfig
from omni_python.models.noop.config import NoopLinePipelineConfig
from omni_python.models.qwen3_omni.config import Qwen3OmniSpeechPipelineConfig
from omni_python.models.qwen3_omni.tiny import build
from omni_python.serve.server_options import SHARED_MEMORY, ServerOptions
from omni_python.serve.triton_server import ServerFailed, TritonServer

WARM_SHARE, WARM_REQUESTS = 0.25, 200
MOMENTS = 40
AVERAGED = 4
"""Moments, of which the median counts at either end: memory that is in use for a moment is no growth."""

MB = 1 << 20
KEPT_KERNELS = 16
HOST_WIDE = ("descriptors", "threads")


@dataclass(frozen=True)
class Kind:
    """What is asked: `options` makes a request's; one that is to be cancelled (its argument) is so within `patience`
    seconds."""

    config: Callable[[Path], PipelineConfig]
    options: Callable[[bool], dict[str, Any]]
    patience: float


@dataclass
class Soak:
    """What happened so far; `moments` are figures by name, each after so many requests."""

    moments: list[tuple[int, dict[str, float]]] = field(default_factory=list)
    finished: int = 0
    cancelled: int = 0
    failed: Counter[str] = field(default_factory=Counter)

    @property
    def done(self) -> int:
        return self.finished + self.cancelled + self.failed.total()


def tiny_config(folder: Path) -> PipelineConfig:
    build(folder / "tiny")
    return Qwen3OmniSpeechPipelineConfig(model_path=str(folder / "tiny"))


def noop_options(cancel: bool) -> dict[str, Any]:
    """Those to be cancelled work for a moment, so that they are found in all places."""
    return {"sampling": {"nbytes": random.choice((0, 1000, 100_000, 2_000_000)), "delay": 0.02 if cancel else 0.0}}


def tiny_options(cancel: bool) -> dict[str, Any]:
    """Two spoken answers for each that is text alone. Those to be cancelled would be long."""
    speech = random.random() < 2 / 3
    length = 60 if cancel else random.randint(2, 6)
    sampling = {"max_tokens": length, "ignore_eos": cancel, "talker": {"max_tokens": length}}
    return {"sampling": sampling, "modalities": ["text", "audio"] if speech else ["text"]}


KINDS = {
    "noop": Kind(lambda folder: NoopLinePipelineConfig(), noop_options, patience=0.1),
    "tiny": Kind(tiny_config, tiny_options, patience=1.0),
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pipeline", choices=KINDS, default="noop")
    parser.add_argument("--requests", type=int, default=20_000)
    parser.add_argument("--cancelled", type=float, default=0.2)
    parser.add_argument("--concurrency", type=int, default=16)
    parser.add_argument("--allow-mb", type=float, default=8.0)
    args = parser.parse_args()
    kind = KINDS[args.pipeline]
    os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", str(KEPT_KERNELS))
    with tempfile.TemporaryDirectory(prefix="omni-soak-") as folder:
        config = kind.config(Path(folder))
        compile_pipeline(config, Path(folder) / "models")
        with TritonServer.start(ServerOptions(model_repository=Path(folder) / "models"), timeout_s=300) as server:
            start = time.monotonic()
            try:
                soak = asyncio.run(run(server, config.resolved_name, kind, args))
            except ServerFailed as error:
                print(error)
                return 1
            seconds = time.monotonic() - start
            left = held_at_end(server, config.resolved_name)
            aborted = metrics.read(server, "omni_requests_total", state="aborted")
    print(f"{args.requests} requests in {seconds:.0f} s: {soak.finished} finished, {soak.cancelled} cancelled ", end="")
    print(f"({aborted:.0f} of them while they ran), {soak.failed.total()} failed")
    problems = [f"{count} x {error}" for error, count in soak.failed.most_common(10)]
    problems += [f"still held: {left}"] if left else []
    problems += ["no request ended as aborted"] if soak.cancelled and not aborted else []
    problems += growth(soak, args.requests, args.allow_mb)
    print("\n".join(problems) or "flat: nothing grew, nothing is held, nothing failed")
    return 1 if problems else 0


async def run(server: TritonServer, name: str, kind: Kind, args: argparse.Namespace) -> Soak:
    soak, numbers = Soak(), itertools.count()

    async def work(client: AsyncOmniClient) -> None:
        while next(numbers) < args.requests:
            await ask(client, kind, random.random() < args.cancelled, soak)
            if server.has_exited():
                raise ServerFailed(f"tritonserver ended after {soak.done} requests: {server.failure()}")
            if soak.done >= args.requests * len(soak.moments) / MOMENTS:
                soak.moments.append((soak.done, figures(server)))

    async with AsyncOmniClient(server.grpc_url, name) as client:
        await asyncio.gather(*(work(client) for _ in range(args.concurrency)))
    return soak


async def ask(client: AsyncOmniClient, kind: Kind, cancel: bool, soak: Soak) -> None:
    try:
        async with asyncio.timeout(random.random() * kind.patience if cancel else None):
            async for _ in client.stream("Say something.", **kind.options(cancel)):
                pass
    except TimeoutError:
        soak.cancelled += 1
    except OmniClientError as error:
        soak.failed[str(error)] += 1
    else:
        soak.finished += 1


def figures(server: TritonServer) -> dict[str, float]:
    """MiB by process and in /dev/shm; counts of all the server's processes together."""
    root = psutil.Process(server.process.pid)
    processes = [root, *root.children(recursive=True)]
    return {
        "client": memory(psutil.Process()),
        **{name_of(process): memory(process) for process in processes},
        "/dev/shm": sum(region.stat().st_size for region in SHARED_MEMORY.glob(f"{server.name}_*")) / MB,
        "descriptors": sum(process.num_fds() for process in processes),
        "threads": sum(process.num_threads() for process in processes),
    }


def memory(process: psutil.Process) -> float:
    """MiB of a process's own and shared memory, resident or swapped out. Pages of files are left out: the kernel drops
    them and reads them again as it likes."""
    status = Path(f"/proc/{process.pid}/status").read_text()
    return sum(int(kib) for kib in re.findall(r"^(?:RssAnon|RssShmem|VmSwap):\s+(\d+) kB", status, re.MULTILINE)) / 1024


def held_at_end(server: TritonServer, name: str) -> dict[str, float]:
    try:
        metrics.wait_empty(server, name, timeout=30)
    except AssertionError:
        return metrics.held(server, name)
    return {}


def growth(soak: Soak, requests: int, allow_mb: float) -> list[str]:
    """Print the table; what grew."""
    warm_after = max(WARM_SHARE * requests, min(WARM_REQUESTS, requests / 2))
    after = [moment for moment in soak.moments if moment[0] >= warm_after]
    print(f"\n{'MiB':24} {'warm':>9} {'end':>9} {'growth':>8} {'per 1000 requests':>18}")
    bad = []
    for name in after[0][1]:
        values = [figures[name] for _, figures in after]
        warm, end = statistics.median(values[:AVERAGED]), statistics.median(values[-AVERAGED:])
        slope = statistics.linear_regression([done / 1000 for done, _ in after], values).slope
        print(f"{name:24} {warm:9.1f} {end:9.1f} {end - warm:+8.1f} {slope:+18.3f}")
        if end - warm > (0.1 * warm if name in HOST_WIDE else allow_mb):
            bad.append(f"{name} grew by {end - warm:.1f}")
    return bad


if __name__ == "__main__":
    sys.exit(main())
