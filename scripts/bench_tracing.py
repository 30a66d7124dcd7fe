"""What tracing costs on the no-op line, over Triton's gRPC front.

    scripts/bench_tracing [--rounds 9] [--requests 3000] [--concurrency 16] [--shares 0.01,1]

One server has the line once without tracing and once for each share of requests that is traced by chance. Each takes
the same requests in turn, `--rounds` times, every round in another order. Printed are the medians of requests a second
and of CPU milliseconds of the server's processes a request, and of the ratios to the line without tracing within a
round, with their smallest and largest. `0` as a share gives the noise of the measurement.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np
from raw_load import Load
from server_cost import Round, cpu_seconds

from omni_python.client._protocol import infer_request
from omni_python.config.compile import compile_pipeline
from omni_python.config.parts import TraceConfig
from omni_python.models.noop.config import NoopLinePipelineConfig
from omni_python.serve.triton_server import ServerOptions, TritonServer

PLAIN = "noop_plain"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--requests", type=int, default=3000)
    parser.add_argument("--concurrency", type=int, default=16)
    parser.add_argument("--shares", default="0.01,1")
    args = parser.parse_args()
    shares = {PLAIN: 0.0} | {f"noop_share_{n}": float(share) for n, share in enumerate(args.shares.split(","))}
    with tempfile.TemporaryDirectory(prefix="omni-tracing-") as folder:
        for name, share in shares.items():
            compile_pipeline(NoopLinePipelineConfig(name=name, trace=TraceConfig(sample=share)), Path(folder))
        with TritonServer.start(ServerOptions(model_repository=Path(folder)), timeout_s=200) as server:
            loads = {name: load(server, name) for name in shares}
            for each in loads.values():
                each.batch(300, args.concurrency)  # warm
            rounds = [measured(server, loads, number, args) for number in range(args.rounds)]
            for each in loads.values():
                each.close()
    for name, share in shares.items():
        told(f"share {share:g}" if name != PLAIN else "untraced", [(one[name], one[PLAIN]) for one in rounds])


def load(server: TritonServer, pipeline: str) -> Load:
    sampling = np.array([json.dumps({"nbytes": 1024}).encode()], object)
    inputs = {"text_input": np.array([b"x"], object), "sampling_parameters": sampling}
    return Load(server.grpc_url, [infer_request(pipeline, inputs)])


def measured(server: TritonServer, loads: dict[str, Load], number: int, args: argparse.Namespace) -> dict[str, Round]:
    names = list(loads)
    turn = number % len(names)
    return {name: one(server, loads[name], args) for name in names[turn:] + names[:turn]}


def one(server: TritonServer, load: Load, args: argparse.Namespace) -> Round:
    before, start = cpu_seconds(server), time.perf_counter()
    failed = [request.error for request in load.batch(args.requests, args.concurrency) if request.error]
    seconds = time.perf_counter() - start
    if failed:
        raise SystemExit(f"{len(failed)} requests failed: {failed[0]}")
    return Round(args.requests / seconds, 1000 * (cpu_seconds(server) - before) / args.requests)


def told(what: str, pairs: list[tuple[Round, Round]]) -> None:
    rates = [one.rate / plain.rate for one, plain in pairs]
    costs = [one.cpu / plain.cpu for one, plain in pairs]
    print(
        f"{what:>12}: {statistics.median(one.rate for one, _ in pairs):7.1f} requests/s, "
        f"{statistics.median(rates):.3f} of the untraced ({min(rates):.3f} to {max(rates):.3f}); "
        f"{statistics.median(one.cpu for one, _ in pairs):.3f} CPU ms a request, "
        f"{statistics.median(costs):.3f} ({min(costs):.3f} to {max(costs):.3f})",
        flush=True,
    )


if __name__ == "__main__":
    main()
