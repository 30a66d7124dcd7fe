"""Open loop at several times what a pipeline can take: what is still served, and how the rest is refused.

    scripts/overload [--seconds 120] [--times 10] [--deadline 2] [--delay 0.02]

The no-op line works `--delay` seconds on each request, one after the other, which sets its capacity. First the peak is
measured in a closed loop, then requests come at `--times` that rate at equal distances, whatever becomes of them. The
exit status is 1 where less than 90 % of the peak is served in time, where the 99th percentile of refusals takes more
than 50 ms, or where a request ends more than 0.25 s past its deadline.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from omni_python.client import OmniClient, OmniClientError
from omni_python.config.compile import compile_pipeline
from omni_python.config.declaration import LimitsConfig
from omni_python.models.noop.config import NoopLinePipelineConfig
from omni_python.serve.triton_server import ServerOptions, TritonServer

PIPELINE = "noop_line"
IN_FLIGHT = 8
SLACK_S = 0.25


@dataclass(frozen=True)
class End:
    """Seconds that a request took; "" or the error that it ended with."""

    seconds: float
    error: str


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=120.0)
    parser.add_argument("--times", type=float, default=10.0)
    parser.add_argument("--deadline", type=float, default=2.0)
    parser.add_argument("--delay", type=float, default=0.02)
    args = parser.parse_args()
    # As many may wait as can be served in half of a deadline: those that are admitted are then served in time.
    queued = max(1, int(args.deadline / args.delay / 2) - IN_FLIGHT)
    limits = LimitsConfig(max_in_flight=IN_FLIGHT, max_queued=queued)
    with tempfile.TemporaryDirectory(prefix="omni-overload-") as folder:
        compile_pipeline(NoopLinePipelineConfig(limits=limits), Path(folder))
        with (
            TritonServer.start(ServerOptions(model_repository=Path(folder)), timeout_s=300) as server,
            OmniClient(server.grpc_url, PIPELINE) as client,
        ):
            peak = closed_loop(client, args.delay)
            print(f"peak: {peak:.1f} requests/s in a closed loop of {IN_FLIGHT}", flush=True)
            ends = open_loop(client, args, rate=args.times * peak)
    return report(ends, peak, args)


def ask(client: OmniClient, delay: float, deadline: float) -> End:
    start = time.monotonic()
    try:
        client.chat("x", sampling={"delay": delay, "timeout_ms": deadline * 1000})
    except OmniClientError as error:
        return End(time.monotonic() - start, str(error))
    return End(time.monotonic() - start, "")


def closed_loop(client: OmniClient, delay: float, seconds: float = 5.0) -> float:
    """Requests a second with `IN_FLIGHT` always there."""
    served: list[End] = []
    end = time.monotonic() + seconds

    def work() -> None:
        while time.monotonic() < end:
            served.append(ask(client, delay, 60.0))

    threads = [threading.Thread(target=work) for _ in range(IN_FLIGHT)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(not one.error for one in served) / seconds


def open_loop(client: OmniClient, args: argparse.Namespace, rate: float) -> list[End]:
    asked: list[Future[End]] = []
    start = time.monotonic()
    with ThreadPoolExecutor(int(rate * args.deadline)) as pool:
        while (now := time.monotonic() - start) < args.seconds:
            while len(asked) < now * rate:
                asked.append(pool.submit(ask, client, args.delay, args.deadline))
            time.sleep(0.002)
        return [one.result() for one in asked]


def report(ends: list[End], peak: float, args: argparse.Namespace) -> int:
    served = [end.seconds for end in ends if not end.error]
    refused = sorted(end.seconds for end in ends if "in flight and" in end.error)
    overdue = [end.seconds for end in ends if end.error.startswith("deadline exceeded")]
    others = sorted({end.error for end in ends if end.error} - {e.error for e in ends if "in flight and" in e.error})
    goodput = len(served) / args.seconds
    late = max((end.seconds for end in ends), default=0.0) - args.deadline
    p99 = refused[int(0.99 * (len(refused) - 1))] if refused else 0.0
    print(f"{len(ends)} requests at {len(ends) / args.seconds:.0f}/s: {len(served)} served, {len(refused)} refused, ")
    print(
        f"  {len(overdue)} ended at their deadline, {len(ends) - len(served) - len(refused) - len(overdue)} otherwise"
    )
    print(
        f"goodput {goodput:.1f}/s, {goodput / peak:.0%} of the peak; the slowest ended {late:+.2f} s from its deadline"
    )
    if refused:
        print(f"refusals: median {refused[len(refused) // 2] * 1000:.1f} ms, 99 % {p99 * 1000:.1f} ms")
    for error in others[:5]:
        print("  also:", error)
    return 1 if goodput < 0.9 * peak or p99 > 0.05 or late > SLACK_S else 0


if __name__ == "__main__":
    sys.exit(main())
