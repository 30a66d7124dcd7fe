"""What metrics cost, and that reading them under load does no harm.

    scripts/bench_metrics [--load line|chunks] [--starts 4] [--blocks 10] [--concurrency 16]
                          [--server-cpus LIST] [--load-cpus LIST]
    scripts/bench_metrics --starts 0 --soak 600

Two servers with the same no-op stages, one of them started with `OMNI_METRICS=0`, take pieces of a load in turn, of
about 2 s each, four in each of `--blocks` blocks; the other one is asked for its metrics once a second all the time.
All of it is done in `--starts` pairs of servers, as some of what a process costs is the luck of its start. Printed are
the CPU milliseconds of a server's processes a request, requests a second, and how many times those without metrics they
are: the median over the blocks, with its 95 % interval. `--soak` then loads another server with metrics for so many
seconds, in which a look once a second must find it alive and its counters never going back.

The exit status is 1 where a request failed, metrics could not be read, a counter went back, or the counters do not
agree with what was asked. What counting costs (and not writing) is in both servers; `--counting` measures that alone.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import os
import sys
import tempfile
import threading
import time
import timeit
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cpus
from raw_load import Load
from server_cost import Cost, ServerClock, in_turns, piece, tell
from tests.e2e import metrics

from omni_python.client._inputs import request_inputs
from omni_python.client._protocol import infer_request
from omni_python.config.compile import compile_pipeline
from omni_python.config.schema import PipelineConfig
from omni_python.models.noop.config import NoopForwardPipelineConfig, NoopLinePipelineConfig
from omni_python.pipeline.answers import ResponseSink
from omni_python.pipeline.stats.answers import AnswerStats, MeasuredSink
from omni_python.pipeline.stats.edges import EdgeStats
from omni_python.pipeline.stats.stages import StageStats
from omni_python.proto.messages import Envelope
from omni_python.proto.payload import TextOutput
from omni_python.serve.server_options import ServerOptions
from omni_python.serve.triton_server import TritonServer


@dataclass(frozen=True)
class Question:
    """What is asked, and how many times in a piece."""

    config: Callable[[], PipelineConfig]
    sampling: dict[str, Any]
    piece: int


QUESTIONS = {
    "line": Question(NoopLinePipelineConfig, {"nbytes": 1024}, 2000),
    "chunks": Question(NoopForwardPipelineConfig, {"chunks": 200, "chunk_bytes": 100}, 200),
}
WITH, WITHOUT = "with metrics", "without"


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
    parser.add_argument("--load", choices=QUESTIONS, default="line")
    parser.add_argument("--starts", type=int, default=4)
    parser.add_argument("--blocks", type=int, default=10)
    parser.add_argument("--concurrency", type=int, default=16)
    parser.add_argument("--soak", type=float, default=0.0, metavar="SECONDS")
    parser.add_argument("--counting", action="store_true", help="only measure what counting costs, without a server")
    cpus.add_options(parser)
    args = parser.parse_args()
    if args.counting:
        print_counting()
        return 0
    cpus.pin(args.load_cpus)
    question = QUESTIONS[args.load]
    with tempfile.TemporaryDirectory(prefix="omni-metrics-") as folder:
        compile_pipeline(question.config(), Path(folder))
        blocks: list[dict[str, Cost]] = []
        problems: list[str] = []
        for _ in range(args.starts):
            with started(Path(folder), args, "0") as silent, started(Path(folder), args) as server:
                with reading(server, problems):
                    blocks += compare(server, silent, question, args)
                problems += disagreements(server)
        for name in (WITHOUT, WITH) if blocks else ():
            tell(blocks, name, WITHOUT)
        if args.soak:
            with started(Path(folder), args) as server:
                with reading(server, problems):
                    asked = soak(server, question, args)
                problems += disagreements(server, asked)
    print("\n".join(problems) or "nothing went wrong")
    return 1 if problems else 0


@contextlib.contextmanager
def reading(server: TritonServer, problems: list[str]) -> Iterator[None]:
    reader = Reader(server)
    reader.start()
    yield
    reader.close()
    problems += reader.wrong
    print(f"metrics were read {reader.reads} times", flush=True)


def started(repository: Path, args: argparse.Namespace, metrics_wanted: str = "1") -> TritonServer:
    os.environ["OMNI_METRICS"] = metrics_wanted
    with cpus.pinned(args.server_cpus):
        return TritonServer.start(ServerOptions(model_repository=repository), timeout_s=100)


def loading(server: TritonServer, question: Question) -> Load:
    inputs = request_inputs("Go.", {"sampling": question.sampling}, stream=True)
    return Load(server.grpc_url, [infer_request(question.config().resolved_name, inputs)])


def compare(
    server: TritonServer, silent: TritonServer, question: Question, args: argparse.Namespace
) -> list[dict[str, Cost]]:
    sides = {}
    for name, each in ((WITH, server), (WITHOUT, silent)):
        clock, load = ServerClock(each), loading(each, question)
        load.batch(question.piece, args.concurrency)  # warm
        sides[name] = functools.partial(piece, clock, load, question.piece, args.concurrency)
    return in_turns(sides, args.blocks)


def soak(server: TritonServer, question: Question, args: argparse.Namespace) -> int:
    """Ask for so long; how many requests were answered."""
    load, done = loading(server, question), 0
    end = time.monotonic() + args.soak
    while time.monotonic() < end:
        if failed := [one.error for one in load.batch(question.piece, args.concurrency) if one.error]:
            raise SystemExit(f"{len(failed)} requests failed: {failed[0]}")
        done += question.piece
    load.close()
    print(f"{done} requests in {args.soak:g} s")
    return done


def disagreements(server: TritonServer, asked: int | None = None) -> list[str]:
    """`asked` are all that the server ever had, where that is known."""
    time.sleep(2.5)  # until all totals are written
    completed = metrics.read(server, "omni_requests_total", state="completed")
    counted = metrics.read(server, "omni_request_duration_seconds_count", state="completed")
    wrong = [] if completed == counted else [f"{completed:.0f} requests completed, {counted:.0f} were timed"]
    if asked is not None and completed != asked:
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
