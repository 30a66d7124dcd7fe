"""What the runtime itself costs: no-op stages behind a real tritonserver, asked over gRPC from this process.

    scripts/bench_runtime [--rounds N] [--only linear,stream,client,abort] [--peer "COMMAND"] [--json FILE]

`--peer` is a command that runs another runtime's benchmark and prints a JSON object a line with the same keys (`bench`,
`bytes` or `chunk_bytes`, `conc`, and the figures). It is run in turn with ours; a table of both with ratios follows.
"""

from __future__ import annotations

import argparse
import json
import queue
import shlex
import statistics
import subprocess
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import psutil
from tritonclient.grpc import service_pb2, service_pb2_grpc

from omni_python.config.compile import compile_pipeline
from omni_python.models.noop.config import NoopForwardPipelineConfig, NoopLinePipelineConfig, NoopStreamPipelineConfig
from omni_python.serve.triton_server import ServerOptions, TritonServer

Row = dict[str, Any]

HIGHER_IS_BETTER = ("c16_rps", "chunks_per_s")
FIGURES = (
    "p50_ms", "p99_ms", "cpu_ms_per_req_c1", "c16_rps", "cpu_ms_per_req_c16", "chunks_per_s", "cpu_us_per_chunk",
    "first_chunk_ms", "last_first_chunk_ms", "stage_sees_p50_ms", "next_request_after_abort_s",
)  # fmt: skip


@dataclass
class Finished:
    """One request as the client saw it: seconds from sending to the first and the last response, and their number."""

    first: float
    total: float
    responses: int


@dataclass
class _Running:
    sent: float
    first: float = 0.0
    responses: int = 0
    done: threading.Event = field(default_factory=threading.Event)


class Load:
    """One gRPC stream that carries any number of requests to a model at once."""

    def __init__(self, url: str, model: str) -> None:
        self._model = model
        self._channel = grpc.insecure_channel(url)
        self._requests: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._running: dict[str, _Running] = {}
        self._finished: queue.SimpleQueue[Finished] = queue.SimpleQueue()
        stub = service_pb2_grpc.GRPCInferenceServiceStub(self._channel)
        self.call = stub.ModelStreamInfer(iter(self._requests.get, None))
        self._numbers = iter(range(1 << 62))
        threading.Thread(target=self._receive, daemon=True).start()

    def send(self, params: dict[str, Any], stream: bool) -> None:
        number = str(next(self._numbers))
        request = service_pb2.ModelInferRequest(model_name=self._model, id=number)
        for name, datatype, raw in (
            ("text_input", "BYTES", _bytes(b"x")),
            ("sampling_parameters", "BYTES", _bytes(json.dumps(params).encode())),
            ("stream", "BOOL", np.array([stream]).tobytes()),
        ):
            request.inputs.add(name=name, datatype=datatype, shape=[1])
            request.raw_input_contents.append(raw)
        self._running[number] = _Running(time.perf_counter())
        self._requests.put(request)

    def wait(self) -> Finished:
        return self._finished.get(timeout=120)

    def close(self) -> None:
        self._requests.put(None)
        self.call.cancel()
        self._channel.close()

    def _receive(self) -> None:
        try:
            for reply in self.call:
                if reply.error_message:
                    raise SystemExit(f"{self._model}: {reply.error_message}")
                response = reply.infer_response
                running = self._running[response.id]
                now = time.perf_counter()
                if response.outputs:
                    running.responses += 1
                    running.first = running.first or now
                if response.parameters["triton_final_response"].bool_param:
                    del self._running[response.id]
                    self._finished.put(
                        Finished(running.first - running.sent, now - running.sent, running.responses - 1)
                    )
        except grpc.RpcError:
            pass  # closed


def _bytes(data: bytes) -> bytes:
    return len(data).to_bytes(4, "little") + data


class Cpu:
    """CPU seconds that the server and its stubs use while the block runs."""

    def __init__(self, server: TritonServer) -> None:
        self._process = psutil.Process(server.process.pid)
        self.seconds = 0.0

    def __enter__(self) -> Cpu:
        self._start = self._used()
        return self

    def __exit__(self, *exc: object) -> None:
        self.seconds = self._used() - self._start

    def _used(self) -> float:
        processes = [self._process, *self._process.children(recursive=True)]
        return sum(sum(process.cpu_times()[:2]) for process in processes)


def closed_loop(
    load: Load, params: dict[str, Any], total: int, concurrency: int, stream: bool = False
) -> list[Finished]:
    """`total` requests, always `concurrency` in flight."""
    for _ in range(min(concurrency, total)):
        load.send(params, stream)
    finished = []
    for sent in range(concurrency, total + concurrency):
        finished.append(load.wait())
        if sent < total:
            load.send(params, stream)
        if len(finished) == total:
            break
    return finished


def linear(server: TritonServer) -> Iterator[Row]:
    """Three stages in a line: latency at concurrency 1, throughput at 16."""
    load = Load(server.grpc_url, "noop_line")
    for nbytes, n_latency, n_throughput in (
        (0, 300, 1500),
        (1 << 10, 300, 1500),
        (1 << 20, 200, 400),
        (16 << 20, 60, 100),
    ):
        params = {"nbytes": nbytes}
        closed_loop(load, params, 20, 1)
        with Cpu(server) as alone:
            latencies = [f.total * 1e3 for f in closed_loop(load, params, n_latency, 1)]
        start = time.perf_counter()
        with Cpu(server) as together:
            closed_loop(load, params, n_throughput, 16)
        seconds = time.perf_counter() - start
        yield {
            "bench": "linear",
            "bytes": nbytes,
            "p50_ms": round(statistics.median(latencies), 3),
            "p99_ms": round(sorted(latencies)[int(len(latencies) * 0.99) - 1], 3),
            "cpu_ms_per_req_c1": round(alone.seconds / n_latency * 1e3, 2),
            "c16_rps": round(n_throughput / seconds, 1),
            "cpu_ms_per_req_c16": round(together.seconds / n_throughput * 1e3, 2),
        }
    load.close()


def stream(server: TritonServer) -> Iterator[Row]:
    """A streaming edge between two processes: 1000 chunks a request."""
    load = Load(server.grpc_url, "noop_stream")
    for chunk_bytes in (4096, 65536):
        params = {"chunks": 1000, "chunk_bytes": chunk_bytes}
        closed_loop(load, {**params, "chunks": 50}, 3, 1)
        for concurrency, total in ((1, 5), (8, 8)):
            start = time.perf_counter()
            with Cpu(server) as cpu:
                closed_loop(load, params, total, concurrency)
            seconds = time.perf_counter() - start
            yield {
                "bench": "stream",
                "chunk_bytes": chunk_bytes,
                "conc": concurrency,
                "chunks_per_s": round(1000 * total / seconds),
                "cpu_us_per_chunk": round(cpu.seconds / (1000 * total) * 1e6, 1),
            }
    load.close()


def to_client(server: TritonServer) -> Iterator[Row]:
    """The last stage streams 1000 chunks of 4 KB to the client, through gRPC."""
    load = Load(server.grpc_url, "noop_forward")
    params = {"chunks": 1000, "chunk_bytes": 4096}
    closed_loop(load, params, 1, 1, stream=True)
    for concurrency in (1, 8):
        start = time.perf_counter()
        finished = closed_loop(load, params, concurrency, concurrency, stream=True)
        seconds = time.perf_counter() - start
        firsts = [f.first * 1e3 for f in finished]
        yield {
            "bench": "stream_to_client",
            "chunk_bytes": 4096,
            "conc": concurrency,
            "chunks_per_s": round(sum(f.responses for f in finished) / seconds),
            "first_chunk_ms": round(statistics.median(firsts), 2),
            "last_first_chunk_ms": round(max(firsts), 2),
        }
    load.close()


def abort(server: TritonServer, log: Path) -> Iterator[Row]:
    """A client cancels its stream while the middle stage works: when does that stage hear of it?"""
    seen = []
    for _ in range(30):
        log.write_text("")
        load = Load(server.grpc_url, "noop_line")
        load.send({"delay": 0.15}, False)
        time.sleep(0.03)
        start = time.monotonic()
        load.close()
        time.sleep(0.2)
        seen.append((float(log.read_text().split()[0]) - start) * 1e3)
    yield {"bench": "abort", "stage_sees_p50_ms": round(statistics.median(seen), 2)}
    load = Load(server.grpc_url, "noop_line")
    load.send({"delay": 1.0}, False)
    time.sleep(0.05)
    load.close()
    start = time.monotonic()
    load = Load(server.grpc_url, "noop_line")
    closed_loop(load, {}, 1, 1)
    load.close()
    yield {"bench": "abort_head_of_line", "next_request_after_abort_s": round(time.monotonic() - start, 3)}


def ours(parts: set[str]) -> Iterator[Row]:
    """Start a server for all no-op pipelines and measure."""
    with tempfile.TemporaryDirectory() as folder:
        repository, log = Path(folder) / "models", Path(folder) / "aborts"
        compile_pipeline(NoopLinePipelineConfig(runtime_overrides={"b": {"abort_log": str(log)}}), repository)
        compile_pipeline(NoopStreamPipelineConfig(), repository)
        compile_pipeline(NoopForwardPipelineConfig(), repository)
        with TritonServer.start(ServerOptions(model_repository=repository)) as server:
            time.sleep(1)
            if "linear" in parts:
                yield from linear(server)
            if "stream" in parts:
                yield from stream(server)
            if "client" in parts:
                yield from to_client(server)
            if "abort" in parts:
                yield from abort(server, log)


def peers(command: str) -> Iterator[Row]:
    """The rows that the peer's benchmark prints; its other lines are passed over."""
    with subprocess.Popen(shlex.split(command), stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            try:
                row = json.loads(line)
            except json.JSONDecodeError:
                continue
            if isinstance(row, dict) and row.get("bench") and not str(row.get("topo", "")).startswith("1 process"):
                yield row


def key(row: Row) -> tuple[Any, ...]:
    return row["bench"], row.get("bytes", row.get("chunk_bytes")), row.get("conc")


def medians(rows: list[Row]) -> dict[tuple[Any, ...], dict[str, float]]:
    grouped: dict[tuple[Any, ...], dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for row in rows:
        for figure in FIGURES:
            if figure in row:
                grouped[key(row)][figure].append(row[figure])
    return {k: {figure: statistics.median(values) for figure, values in v.items()} for k, v in grouped.items()}


def print_table(our_rows: list[Row], peer_rows: list[Row]) -> None:
    """Medians over the rounds; a ratio over 1 means that ours is better."""
    theirs = medians(peer_rows)
    print(f"\n{'bench':<34}{'figure':<28}{'ours':>12}{'peer':>12}{'better by':>12}")
    for which, figures in medians(our_rows).items():
        name = " ".join(str(part) for part in which if part is not None)
        for figure, value in figures.items():
            peer = theirs.get(which, {}).get(figure)
            ratio = ""
            if peer is not None and value and peer:
                ratio = f"{value / peer if figure in HIGHER_IS_BETTER else peer / value:.2f} x"
            print(f"{name:<34}{figure:<28}{value:>12g}{peer if peer is not None else '-':>12}{ratio:>12}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=1, help="how often to measure; medians are printed")
    parser.add_argument("--only", default="linear,stream,client,abort", help="parts to run")
    parser.add_argument("--peer", help="command of another runtime's benchmark, run in turn with ours")
    parser.add_argument("--json", type=Path, help="write all rows here")
    args = parser.parse_args()
    our_rows: list[Row] = []
    peer_rows: list[Row] = []
    for _ in range(args.rounds):
        for row in ours(set(args.only.split(","))):
            print(json.dumps({"side": "ours", **row}), flush=True)
            our_rows.append(row)
        if args.peer:
            for row in peers(args.peer):
                print(json.dumps({"side": "peer", **row}), flush=True)
                peer_rows.append(row)
    print_table(our_rows, peer_rows)
    if args.json:
        args.json.write_text(json.dumps({"ours": our_rows, "peer": peer_rows}, indent=1))


if __name__ == "__main__":
    main()
