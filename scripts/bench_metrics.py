"""What metrics cost, and that reading them under load does no harm.

    scripts/bench_metrics [--load line|chunks] [--rounds 5] [--seconds 10] [--concurrency 16]
    scripts/bench_metrics --rounds 0 --soak 600

Two servers with the same no-op stages, one of them started with `OMNI_METRICS=0`, take the same load in turn, for
`--seconds` each and `--rounds` times; the one with metrics is asked for them once a second meanwhile. Printed are
requests a second and CPU milliseconds of the server's processes a request: medians, and the ratio with metrics to
without, with its smallest and largest of a round. `--soak` then loads the server with metrics for so many seconds more,
in which a look once a second must find it alive and its counters never going back.

The exit status is 1 where a request failed, metrics could not be read, a counter went back, or the counters do not
agree with what was asked. What counting costs (and not writing) is in both servers; `--counting` measures that alone.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import sys
import tempfile
import threading
import time
import timeit
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from server_cost import Round, cpu_seconds
from tests.e2e import metrics

from omni_python.client import AsyncOmniClient
from omni_python.config.compile import compile_pipeline
from omni_python.config.schema import PipelineConfig
from omni_python.models.noop.config import NoopForwardPipelineConfig, NoopLinePipelineConfig
from omni_python.pipeline.answers import ResponseSink
from omni_python.pipeline.stats.answers import AnswerStats, MeasuredSink
from omni_python.pipeline.stats.edges import EdgeStats
from omni_python.pipeline.stats.stages import StageStats
from omni_python.proto.messages import Envelope
from omni_python.proto.payload import TextOutput
from omni_python.serve.triton_server import ServerOptions, TritonServer


@dataclass(frozen=True)
class Load:
    config: Callable[[], PipelineConfig]
    sampling: dict[str, Any]


LOADS = {
    "line": Load(NoopLinePipelineConfig, {"nbytes": 1024}),
    "chunks": Load(NoopForwardPipelineConfig, {"chunks": 200, "chunk_bytes": 100}),
}


class Reader(threading.Thread):
    """Reads a server's metrics once a second, as Prometheus would, until it is closed; `wrong` is what it found."""

    def __init__(self, server: TritonServer) -> None:
        super().__init__(daemon=True)
        self.reads = 0
        self.wrong: list[str] = []
        self._server = server
        self._counters: dict[tuple[str, str], float] = {}
        self._closing = threading.Event()

    def run(self) -> None:
        while not self._closing.wait(1.0):
            try:
                series = metrics.samples(self._server)
            except OSError as error:
                self.wrong.append(f"metrics could not be read: {error}")
                return
            self.reads += 1
            for name, labels, value in series:
                key = name, str(labels)
                if name.endswith(("_total", "_count", "_bucket")) and value < self._counters.get(key, 0.0):
                    self.wrong.append(f"{name} {labels} went back to {value}")
                self._counters[key] = value

    def close(self) -> None:
        self._closing.set()
        self.join()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--load", choices=LOADS, default="line")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--concurrency", type=int, default=16)
    parser.add_argument("--soak", type=float, default=0.0)
    parser.add_argument("--counting", action="store_true", help="only measure what counting costs, without a server")
    args = parser.parse_args()
    if args.counting:
        print_counting()
        return 0
    load = LOADS[args.load]
    config = load.config()
    with tempfile.TemporaryDirectory(prefix="omni-metrics-") as folder:
        compile_pipeline(config, Path(folder))
        options = ServerOptions(model_repository=Path(folder))
        with TritonServer.start(options, timeout_s=100) as server:
            reader = Reader(server)
            if args.rounds:
                os.environ["OMNI_METRICS"] = "0"
                with TritonServer.start(options, timeout_s=100) as other:
                    compare(server, other, reader, config.resolved_name, load, args)
            else:
                reader.start()
            asked = asyncio.run(ask(server, config.resolved_name, load, args.soak, args.concurrency))
            reader.close()
            problems = [*reader.wrong, *disagreements(server, asked, args.rounds)]
    print(f"metrics were read {reader.reads} times; {asked} requests in the soak")
    print("\n".join(problems) or "nothing went wrong")
    return 1 if problems else 0


def compare(
    server: TritonServer, silent: TritonServer, reader: Reader, name: str, load: Load, args: argparse.Namespace
) -> None:
    rounds: list[tuple[Round, Round]] = []
    for each in (silent, server):
        asyncio.run(ask(each, name, load, 2.0, args.concurrency))  # warm
    reader.start()
    for number in range(args.rounds):
        order = (silent, server) if number % 2 else (server, silent)
        measured = {each.name: measure(each, name, load, args) for each in order}
        rounds.append((measured[server.name], measured[silent.name]))
    for what in ("rate", "cpu"):
        with_metrics, without = ([getattr(pair[i], what) for pair in rounds] for i in (0, 1))
        ratios = [a / b for a, b in zip(with_metrics, without, strict=True)]
        unit = {"rate": "requests/s", "cpu": "CPU ms a request"}[what]
        print(
            f"{unit}: {statistics.median(with_metrics):.3f} with metrics, {statistics.median(without):.3f} without; "
            f"ratio {statistics.median(ratios):.4f} ({min(ratios):.4f} to {max(ratios):.4f})",
            flush=True,
        )


def measure(server: TritonServer, name: str, load: Load, args: argparse.Namespace) -> Round:
    before, start = cpu_seconds(server), time.monotonic()
    done = asyncio.run(ask(server, name, load, args.seconds, args.concurrency))
    return Round(done / (time.monotonic() - start), 1000 * (cpu_seconds(server) - before) / done)


async def ask(server: TritonServer, name: str, load: Load, seconds: float, concurrency: int) -> int:
    """Ask for so long; how many requests were answered."""
    end, done = time.monotonic() + seconds, 0

    async def work(client: AsyncOmniClient) -> None:
        nonlocal done
        while time.monotonic() < end:
            async for _ in client.stream("Go.", sampling=load.sampling):
                pass
            done += 1

    async with AsyncOmniClient(server.grpc_url, name) as client:
        await asyncio.gather(*(work(client) for _ in range(concurrency)))
    return done


def disagreements(server: TritonServer, asked: int, rounds: int) -> list[str]:
    """Without rounds the soak's requests are all that the server ever had."""
    time.sleep(2.5)  # until all totals are written
    completed = metrics.read(server, "omni_requests_total", state="completed")
    counted = metrics.read(server, "omni_request_duration_seconds_count", state="completed")
    wrong = [] if completed == counted else [f"{completed:.0f} requests completed, {counted:.0f} were timed"]
    if not rounds and completed != asked:
        wrong.append(f"{asked} requests were answered, {completed:.0f} are counted")
    return wrong


class _Nothing:
    def chunk(self, payload: object) -> None: ...
    def result(self, stage: str, payload: object) -> None: ...
    def finish(self, timings: object, trace: object = None) -> None: ...
    def fail(self, error: object) -> None: ...
    def is_cancelled(self) -> bool:
        return False


def print_counting() -> None:
    edges, stage, answers, nothing = EdgeStats(), StageStats(), AnswerStats(), _Nothing()
    envelope, text = Envelope("text", b"body", b"x" * 1000), TextOutput("text")
    sink: ResponseSink = MeasuredSink(nothing, answers, stream=True)

    def request() -> None:
        stage.queued("id")
        stage.began("id")
        stage.ended("id", None, was_open=True)

    for what, run in {
        "a payload on an edge": lambda: edges.sent("a", "b", envelope, True),
        "a chunk for the client": lambda: sink.chunk(text),
        "a request in a stage": request,
        "a request's answer": lambda: MeasuredSink(nothing, answers, stream=True).finish(()),
    }.items():
        print(f"{what}: {min(timeit.repeat(run, number=100_000, repeat=5)) * 10:.2f} us")


if __name__ == "__main__":
    sys.exit(main())
