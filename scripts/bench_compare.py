"""What the runtime itself costs: no-op stages behind a real tritonserver, asked over gRPC from this process.

    scripts/bench_compare [--rounds N] [--only linear,stream,client,abort] [--peer "COMMAND"] [--json FILE]
                          [--server-cpus LIST] [--load-cpus LIST] [--profile DIR]

`--peer` is a command that runs another runtime's benchmark and prints a JSON object a line with the same keys (`bench`,
`bytes` or `chunk_bytes`, `conc`, and the figures). It runs in turn with ours; a table follows with the medians of both
and, of each round's ratios, the median and the range. Over 1 means that ours is better; `aim` is what we want it to be.
CPU time is that of the server, its stages and the client, as in-process runtimes cannot tell these apart; for the same
reason the peer's command may use the CPUs of both, where these are given.

`--profile` runs py-spy (which must be on PATH) beside one more round of ours and writes a flame graph for each stub
process: where the time of a figure that misses its aim goes.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import shlex
import shutil
import statistics
import subprocess
import tempfile
import time
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import cpus
import psutil
from raw_connection import Request
from raw_load import Load
from server_cost import Cost, ServerClock, cost

from omni_python.bench.usage import process_name
from omni_python.client._inputs import request_inputs
from omni_python.client._protocol import infer_request
from omni_python.config.compile import compile_pipeline
from omni_python.models.noop.config import NoopForwardPipelineConfig, NoopLinePipelineConfig, NoopStreamPipelineConfig
from omni_python.serve.server_options import ServerOptions
from omni_python.serve.triton_server import TritonServer

Row = dict[str, Any]
Key = tuple[Any, ...]

BURSTS = 7
"""Of streams to the client, in each round."""

HIGHER_IS_BETTER = ("c16_rps", "chunks_per_s")
FIGURES = (
    "p50_ms", "p99_ms", "cpu_ms_per_req_c1", "c16_rps", "cpu_ms_per_req_c16", "chunks_per_s", "cpu_us_per_chunk",
    "first_chunk_ms", "last_first_chunk_ms", "first_chunks_apart_ms", "stage_sees_p50_ms", "next_request_after_abort_s",
)  # fmt: skip
AIMS: Mapping[tuple[Key, str], float] = {
    (("linear", 1 << 10, None), "p50_ms"): 1 / 0.65,
    (("linear", 1 << 10, None), "cpu_ms_per_req_c1"): 2.0,
    (("linear", 1 << 10, None), "c16_rps"): 1.7,
    (("linear", 16 << 20, None), "p50_ms"): 8.0,
    (("stream", 4096, 1), "chunks_per_s"): 5.0,
    (("stream", 4096, 8), "chunks_per_s"): 5.0,
    (("stream", 65536, 1), "chunks_per_s"): 5.0,
    (("stream", 65536, 8), "chunks_per_s"): 5.0,
    (("stream_to_client", 4096, 1), "chunks_per_s"): 2.0,
    (("stream_to_client", 4096, 8), "chunks_per_s"): 3.0,
}
PARTS = ("linear", "stream", "client", "abort")
PROFILE_S = 10


@contextlib.contextmanager
def loading(server: TritonServer, pipeline: str, sampling: dict[str, Any], stream: bool = False) -> Iterator[Load]:
    """A load of requests to a no-op pipeline."""
    inputs = request_inputs("x", {"sampling": sampling}, stream=stream)
    load = Load(server.grpc_url, [infer_request(pipeline, inputs)])
    try:
        yield load
    finally:
        load.close()


def measured(server: TritonServer, load: Load, total: int, concurrency: int) -> tuple[list[Request], Cost]:
    """`total` requests, and what they cost."""
    found, ended = cost(ServerClock(server), load, total, concurrency)
    return ended, found


def cpu_a_piece(found: Cost, pieces: int = 1) -> float:
    """CPU seconds of server and client, of a request or one of its pieces."""
    return (found.cpu + found.load_cpu) / (found.requests * pieces)


def took(requests: Sequence[Request]) -> list[float]:
    """Milliseconds, sorted."""
    return sorted((request.ended - request.sent) * 1e3 for request in requests)


def linear(server: TritonServer) -> Iterator[Row]:
    """Three stages in a line: latency at concurrency 1, throughput at 16."""
    for nbytes, n_latency, n_throughput in (
        (0, 300, 1500),
        (1 << 10, 300, 1500),
        (1 << 20, 200, 400),
        (16 << 20, 60, 100),
    ):
        with loading(server, "noop_line", {"nbytes": nbytes}) as load:
            load.batch(20, 1)
            ended, alone = measured(server, load, n_latency, 1)
            load.batch(32, 16)
            _, together = measured(server, load, n_throughput, 16)
        latencies = took(ended)
        yield {
            "bench": "linear",
            "bytes": nbytes,
            "p50_ms": round(statistics.median(latencies), 3),
            "p99_ms": round(latencies[int(len(latencies) * 0.99) - 1], 3),
            "cpu_ms_per_req_c1": round(cpu_a_piece(alone) * 1e3, 2),
            "c16_rps": round(together.rate, 1),
            "cpu_ms_per_req_c16": round(cpu_a_piece(together) * 1e3, 2),
        }


def stream(server: TritonServer) -> Iterator[Row]:
    """A streaming edge between two processes: 1000 chunks a request."""
    for chunk_bytes in (4096, 65536):
        with loading(server, "noop_stream", {"chunks": 1000, "chunk_bytes": chunk_bytes}) as load:
            load.batch(1, 1)
            for concurrency, total in ((1, 5), (8, 8)):
                _, found = measured(server, load, total, concurrency)
                yield {
                    "bench": "stream",
                    "chunk_bytes": chunk_bytes,
                    "conc": concurrency,
                    "chunks_per_s": round(1000 * found.rate),
                    "cpu_us_per_chunk": round(cpu_a_piece(found, 1000) * 1e6, 1),
                }


def to_client(server: TritonServer) -> Iterator[Row]:
    """The last stage streams 1000 chunks of 4 KB to the client, through gRPC, which may bring several at once."""
    with loading(server, "noop_forward", {"chunks": 1000, "chunk_bytes": 4096}, stream=True) as load:
        load.batch(1, 1)
        for concurrency in (1, 8):
            bursts = [burst(server, load, concurrency) for _ in range(BURSTS)]
            medians = {name: round(statistics.median(one[name] for one in bursts), 2) for name in bursts[0]}
            yield {"bench": "stream_to_client", "chunk_bytes": 4096, "conc": concurrency, **medians}


def burst(server: TritonServer, load: Load, concurrency: int) -> dict[str, float]:
    """So many streams that begin at once: a single look at when each has its first chunk tells little."""
    ended, found = measured(server, load, concurrency, concurrency)
    arrived = [request.first for request in ended]
    firsts = [(request.first - request.sent) * 1e3 for request in ended]
    return {
        "chunks_per_s": sum(request.nbytes // 4096 for request in ended) / found.seconds,
        "cpu_us_per_chunk": cpu_a_piece(found, 1000) * 1e6,
        "first_chunk_ms": statistics.median(firsts),
        "last_first_chunk_ms": max(firsts),
        "first_chunks_apart_ms": (max(arrived) - min(arrived)) * 1e3,
    }


def abort(server: TritonServer, log: Path) -> Iterator[Row]:
    """A client cancels its request while the middle stage works: when does that stage hear of it?"""
    seen: list[float] = []
    with loading(server, "noop_line", {"delay": 0.15}) as load:
        for _ in range(30):
            log.write_text("")
            load.send()
            time.sleep(0.03)
            start = time.monotonic()
            load.cancel()
            time.sleep(0.2)
            # A request that did not get to the stage by then is not aborted there.
            seen += [(float(moment) - start) * 1e3 for moment in log.read_text().split()[:1]]
    if not seen:
        raise SystemExit("the stage never heard that its request was cancelled")
    yield {"bench": "abort", "stage_sees_p50_ms": round(statistics.median(seen), 2)}
    with loading(server, "noop_line", {"delay": 1.0}) as slow, loading(server, "noop_line", {}) as quick:
        slow.send()
        time.sleep(0.05)
        start = time.monotonic()
        slow.cancel()
        quick.batch(1, 1)
        yield {"bench": "abort_head_of_line", "next_request_after_abort_s": round(time.monotonic() - start, 3)}


@contextlib.contextmanager
def noop_server(server_cpus: Sequence[int]) -> Iterator[tuple[TritonServer, Path]]:
    """A server for all no-op pipelines, and the file into which the line's middle stage writes when it is aborted."""
    with tempfile.TemporaryDirectory() as folder:
        repository, log = Path(folder) / "models", Path(folder) / "aborts"
        compile_pipeline(NoopLinePipelineConfig(runtime_overrides={"b": {"abort_log": str(log)}}), repository)
        compile_pipeline(NoopStreamPipelineConfig(), repository)
        compile_pipeline(NoopForwardPipelineConfig(), repository)
        with cpus.pinned(server_cpus):
            server = TritonServer.start(ServerOptions(model_repository=repository))
        with server:
            time.sleep(1)
            yield server, log


def ours(parts: Sequence[str], server_cpus: Sequence[int]) -> Iterator[Row]:
    with noop_server(server_cpus) as (server, log):
        if "linear" in parts:
            yield from linear(server)
        if "stream" in parts:
            yield from stream(server)
        if "client" in parts:
            yield from to_client(server)
        if "abort" in parts:
            yield from abort(server, log)


def peers(command: str, all_cpus: Collection[int]) -> Iterator[Row]:
    """The rows that the peer's benchmark prints; its other lines are passed over."""
    found = False
    with cpus.pinned(all_cpus):
        process = subprocess.Popen(shlex.split(command), stdout=subprocess.PIPE, text=True)
    with process:
        assert process.stdout is not None
        for line in process.stdout:
            try:
                row = json.loads(line)
            except json.JSONDecodeError:
                continue
            if isinstance(row, dict) and row.get("bench") and not str(row.get("topo", "")).startswith("1 process"):
                found = True
                yield row
    if not found:
        raise SystemExit(f"the peer's benchmark printed no figures; its status is {process.returncode}")


def key(row: Row) -> Key:
    return row["bench"], row.get("bytes", row.get("chunk_bytes")), row.get("conc")


def by_figure(rounds: Sequence[Sequence[Row]]) -> dict[tuple[Key, str], list[float]]:
    """Each figure's values, one a round."""
    found: dict[tuple[Key, str], list[float]] = defaultdict(list)
    for rows in rounds:
        for row in rows:
            for figure in FIGURES:
                if figure in row:
                    found[key(row), figure].append(row[figure])
    return found


def ratios(figure: str, mine: Sequence[float], peer: Sequence[float]) -> list[float]:
    """How many times better ours was in each round."""
    better = figure in HIGHER_IS_BETTER
    return [(m / p if better else p / m) for m, p in zip(mine, peer, strict=False) if m and p]


def print_table(our_rounds: Sequence[Sequence[Row]], peer_rounds: Sequence[Sequence[Row]]) -> None:
    """Medians over the rounds, and the rounds' ratios: median, smallest and largest."""
    theirs = by_figure(peer_rounds)
    print(f"\n{'bench':<30}{'figure':<28}{'ours':>10}{'peer':>10}{'better by':>11}{'range':>16}{'aim':>7}")
    for (which, figure), mine in by_figure(our_rounds).items():
        name = " ".join(str(part) for part in which if part is not None)
        peer = theirs.get((which, figure), [])
        found = ratios(figure, mine, peer)
        line = f"{name:<30}{figure:<28}{statistics.median(mine):>10g}"
        if found:
            median, aim = statistics.median(found), AIMS.get((which, figure))
            line += f"{statistics.median(peer):>10g}{f'{median:.2f} x':>11}{f'{min(found):.2f} - {max(found):.2f}':>16}"
            line += f"{f'{aim:.2f}':>7}{'' if median >= aim else '  missed'}" if aim else ""
        print(line)
    if not peer_rounds:
        return
    print("\nwhere our time goes: scripts/bench_compare --rounds 0 --only PART --profile DIR")


def profile(parts: Sequence[str], server_cpus: Sequence[int], folder: Path) -> None:
    """Flame graphs of our stub processes while the parts run, again and again."""
    if shutil.which("py-spy") is None:
        raise SystemExit("--profile: there is no py-spy on PATH (pip install py-spy)")
    folder.mkdir(parents=True, exist_ok=True)
    with noop_server(server_cpus) as (server, _):
        children = psutil.Process(server.process.pid).children(recursive=True)
        names = {child.pid: process_name(child.cmdline()) for child in children}
        sampling = ["--duration", str(PROFILE_S), "--rate", "250", "--threads"]
        spies = [
            subprocess.Popen(
                ["py-spy", "record", *sampling, "--pid", str(pid), "--output", str(folder / f"{name}.svg")],
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
            for pid, name in names.items()
        ]
        end = time.monotonic() + PROFILE_S
        while time.monotonic() < end:
            for part, rows in (("linear", linear), ("stream", stream), ("client", to_client)):
                if part in parts:
                    list(rows(server))
        statuses = [spy.wait() for spy in spies]
    if any(statuses):
        raise SystemExit("py-spy failed; it needs the right to trace processes (root, or kernel.yama.ptrace_scope=0)")
    print(f"flame graphs of {', '.join(names.values())} in {folder}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5, help="how often to measure (default: %(default)s)")
    parser.add_argument("--only", default=",".join(PARTS), help="parts to run (default: %(default)s)")
    parser.add_argument("--peer", help="command of another runtime's benchmark, run in turn with ours")
    parser.add_argument("--json", type=Path, help="write all rows here")
    parser.add_argument("--profile", type=Path, metavar="DIR", help="then write flame graphs there")
    cpus.add_options(parser)
    args = parser.parse_args()
    if bool(args.server_cpus) != bool(args.load_cpus):
        parser.error("give both --server-cpus and --load-cpus, so that the peer can have the same")
    cpus.pin(args.load_cpus)
    parts, all_cpus = args.only.split(","), {*args.server_cpus, *args.load_cpus}
    if unknown := sorted(set(parts) - set(PARTS)):
        parser.error(f"--only: {unknown[0]} is not among {', '.join(PARTS)}")
    our_rounds: list[list[Row]] = []
    peer_rounds: list[list[Row]] = []
    try:
        for _ in range(args.rounds):
            our_rounds.append([told("ours", row) for row in ours(parts, args.server_cpus)])
            if args.peer:
                peer_rounds.append([told("peer", row) for row in peers(args.peer, all_cpus)])
    finally:  # also after Ctrl-C, with the rounds until then
        if our_rounds:
            print_table(our_rounds, peer_rounds)
        if args.json:
            args.json.write_text(json.dumps({"ours": our_rounds, "peer": peer_rounds}, indent=1))
    if args.profile:
        profile(parts, args.server_cpus, args.profile)


def told(side: str, row: Row) -> Row:
    print(json.dumps({"side": side, **row}), flush=True)
    return row


if __name__ == "__main__":
    main()
