"""What tracing costs on the no-op line, over Triton's gRPC front.

    scripts/bench_tracing [--starts 4] [--blocks 10] [--requests 1000] [--concurrency 16] [--shares 0.01,1]
                          [--server-cpus LIST] [--load-cpus LIST]

One server has the line once without tracing and once for each share of requests that is traced by chance. They take
pieces of `--requests` requests in turn, in each of `--blocks` blocks once forwards and once backwards, and all of that
in `--starts` servers, as some of what a process costs is the luck of its start. Printed are the server's CPU
milliseconds a request, requests a second, and how many times those of the line without tracing in the same block they
are: the median over the blocks, with its 95 % interval. `0` as a share shows what the method can tell apart.
"""

from __future__ import annotations

import argparse
import functools
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import cpus
from raw_load import Load
from server_cost import Cost, ServerClock, in_turns, piece, tell

from omni_python.client._inputs import request_inputs
from omni_python.client._protocol import infer_request
from omni_python.config.compile import compile_pipeline
from omni_python.config.declaration import TraceConfig
from omni_python.models.noop.config import NoopLinePipelineConfig
from omni_python.serve.server_options import ServerOptions
from omni_python.serve.triton_server import TritonServer

PLAIN = "untraced"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--starts", type=int, default=4)
    parser.add_argument("--blocks", type=int, default=10)
    parser.add_argument("--requests", type=int, default=1000)
    parser.add_argument("--concurrency", type=int, default=16)
    parser.add_argument("--shares", type=lambda text: text.split(","), default=["0.01", "1"])
    cpus.add_options(parser)
    args = parser.parse_args()
    cpus.pin(args.load_cpus)
    shares = {PLAIN: 0.0} | {
        f"share_{n}_{share}".replace(".", "_"): float(share) for n, share in enumerate(args.shares)
    }
    with tempfile.TemporaryDirectory(prefix="omni-tracing-") as folder:
        for name, share in shares.items():
            compile_pipeline(NoopLinePipelineConfig(name=name, trace=TraceConfig(sample=share)), Path(folder))
        blocks = [block for _ in range(args.starts) for block in measured(Path(folder), list(shares), args)]
    for name in shares:
        tell(blocks, name, PLAIN)


def measured(repository: Path, names: Sequence[str], args: argparse.Namespace) -> list[dict[str, Cost]]:
    """The blocks of one server."""
    with cpus.pinned(args.server_cpus):
        server = TritonServer.start(ServerOptions(model_repository=repository), timeout_s=200)
    with server:
        time.sleep(1)
        clock = ServerClock(server)
        sides = {
            name: functools.partial(piece, clock, load(server, name), args.requests, args.concurrency, [name])
            for name in names
        }
        return in_turns(sides, args.blocks)


def load(server: TritonServer, pipeline: str) -> Load:
    inputs = request_inputs("x", {"sampling": {"nbytes": 1024}}, stream=False)
    made = Load(server.grpc_url, [infer_request(pipeline, inputs)])
    made.batch(300, 16)
    return made


if __name__ == "__main__":
    main()
