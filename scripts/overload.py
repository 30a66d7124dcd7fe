"""Open loop at several times what a pipeline can take: what is still served in time, and how the rest is refused.

    scripts/overload [--cases paced,unlimited] [--seconds 120] [--times 10] [--server-cpus 0,1] [--load-cpus 2,3]

paced      the no-op line with 50 ms of work a request, one after the other, and limits that fit its deadline
unlimited  the same with limits far too wide, so that only deadlines tell what can be taken
tiny       the tiny Qwen3-Omni checkpoint, text and speech, with the default limits
bare       the no-op line without any work: it is Triton's gRPC front that has too much, beside it on the same cores

The peak is the best goodput of closed loops of growing concurrency. Then requests come at `--times` that rate at equal
distances, whatever becomes of them. Goodput counts what was served before its deadline and the end of the load. All
times are taken from the moment of sending; how far that lagged behind its due time is the load's own figure.

The load itself needs a core at thousands of requests a second. With `--server-cpus` and `--load-cpus` (lists such as
0-1,4) it takes none of the server's. The cores that each process used are printed, and the seconds of each second that
its threads together were ready and waited for one: unlike percentiles, these figures repeat on a busy machine.

The exit status is 1 where less than 90 % of the peak is served, where the 99th percentile of refusals takes more than
50 ms, or where a request ends more than 0.25 s past its deadline.
"""

from __future__ import annotations

import argparse
import math
import os
import re
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import cpus
import psutil
from raw_connection import ConnectionBroken, Request
from raw_load import Load
from tests.faults.serving import name_of

from omni_python.client._inputs import request_inputs
from omni_python.client._protocol import infer_request
from omni_python.config.compile import compile_pipeline
from omni_python.config.parts import LimitsConfig
from omni_python.config.schema import PipelineConfig
from omni_python.models.noop.config import NoopLinePipelineConfig
from omni_python.models.qwen3_omni.config import Qwen3OmniSpeechPipelineConfig
from omni_python.models.qwen3_omni.tiny import build
from omni_python.serve.server_options import ServerOptions
from omni_python.serve.triton_server import TritonServer

SHARE, REFUSAL_S, SLACK_S = 0.9, 0.05, 0.25
CLOSED_LOOP_S = 5.0
TRIED = 16
WORK_S = 0.05
_LOAD = "the load"


def noop(folder: Path, limits: LimitsConfig) -> PipelineConfig:
    return NoopLinePipelineConfig(limits=limits)


def tiny(folder: Path, limits: LimitsConfig) -> PipelineConfig:
    build(folder / "tiny")
    return Qwen3OmniSpeechPipelineConfig(model_path=str(folder / "tiny"), limits=limits)


@dataclass(frozen=True)
class Case:
    """`client_deadline`: clients tell gRPC of their deadline, too; the pipeline cannot end what waits in Triton."""

    pipeline: Callable[[Path, LimitsConfig], PipelineConfig]
    deadline: float
    sampling: dict[str, Any] = field(default_factory=dict)
    limits: LimitsConfig = field(default_factory=LimitsConfig)
    client_deadline: bool = False


CASES = {
    # As many may wait as are served in half of a deadline.
    "paced": Case(noop, 2.0, {"delay": WORK_S}, LimitsConfig(max_in_flight=8, max_queued=12)),
    "unlimited": Case(noop, 2.0, {"delay": WORK_S}, LimitsConfig(max_in_flight=1024, max_queued=1024)),
    "tiny": Case(tiny, 20.0, {"max_tokens": 8, "talker": {"max_tokens": 12}}),
    "bare": Case(noop, 2.0, {}, LimitsConfig(max_in_flight=16, max_queued=16), client_deadline=True),
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=lambda text: text.split(","), default=["paced", "unlimited"])
    parser.add_argument("--seconds", type=float, default=120.0)
    parser.add_argument("--times", type=float, default=10.0)
    cpus.add_options(parser)
    args = parser.parse_args()
    cpus.pin(args.load_cpus)
    if unknown := [name for name in args.cases if name not in CASES]:
        parser.error(f"--cases: {', '.join(unknown)} is not among {', '.join(CASES)}")
    missed = [name for name in args.cases if not run(name, CASES[name], args)]
    print("missed an aim:", ", ".join(missed) or "none")
    return 1 if missed else 0


def run(name: str, case: Case, args: argparse.Namespace) -> bool:
    """Whether the case reaches all aims."""
    seconds = args.seconds
    with tempfile.TemporaryDirectory(prefix="omni-overload-") as folder:
        config = case.pipeline(Path(folder), case.limits)
        compile_pipeline(config, Path(folder) / "models")
        options = ServerOptions(model_repository=Path(folder) / "models")
        with cpus.pinned(args.server_cpus):
            server = TritonServer.start(options, timeout_s=300)
        with server:
            load = Load(server.grpc_url, [request(config, case)], case.deadline if case.client_deadline else None)
            print(f"\n{name}:", flush=True)
            try:
                best = peak(load, case)
                used = CoresUsed(server)
                asked = load.open_loop(args.times * best, seconds, patience=case.deadline + 10 * SLACK_S)
            except ConnectionBroken as broken:
                sys.exit(f"{broken}; the end of its log: {server.failure()}")
            print(f"  {used.report()}")
            load.close()
    return report(asked, case, best, seconds)


@dataclass(frozen=True)
class Times:
    """Seconds of a process's threads so far: on a core, and ready without one."""

    ran: float
    waited: float

    @classmethod
    def of(cls, pid: int) -> Times:
        """Of the threads that are there now, as the scheduler counts them (Linux, sched-stats.rst)."""
        ran = waited = 0
        for thread in Path(f"/proc/{pid}/task").iterdir():
            with suppress(OSError):  # ended meanwhile
                on_core, ready, _ = (int(word) for word in (thread / "schedstat").read_text().split())
                ran, waited = ran + on_core, waited + ready
        return cls(ran / 1e9, waited / 1e9)


class CoresUsed:
    """From its making to `report`, by every process of a server, and by this one."""

    def __init__(self, server: TritonServer) -> None:
        root = psutil.Process(server.process.pid)
        self._pids = {name_of(process): process.pid for process in (root, *root.children(recursive=True))}
        self._pids[_LOAD] = os.getpid()
        self._start = time.perf_counter()
        self._before = self._times()

    def _times(self) -> dict[str, Times]:
        return {name: Times.of(pid) for name, pid in self._pids.items()}

    def report(self) -> str:
        passed = time.perf_counter() - self._start
        now = self._times()
        ran = {name: (now[name].ran - before.ran) / passed for name, before in self._before.items()}
        waited = {name: (now[name].waited - before.waited) / passed for name, before in self._before.items()}
        server = sum(share for name, share in ran.items() if name != _LOAD)
        return f"cores used ({server:.2f} by the server): {_list(ran)}\n  ready without a core: {_list(waited)}"


def _list(shares: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {share:.2f}" for name, share in shares.items())


def request(config: PipelineConfig, case: Case) -> Any:
    sampling = {**case.sampling, "timeout_ms": case.deadline * 1000}
    return infer_request(config.resolved_name, request_inputs("Say something.", {"sampling": sampling}, stream=False))


def peak(load: Load, case: Case) -> float:
    """Requests served in time a second, in the best of closed loops; the search ends where two more bring no more, but
    not before `TRIED`: the first loops are noisy."""
    load.closed_loop(4, 1.0)
    best, behind, concurrency = 0.0, 0, 1
    most = case.limits.max_in_flight + case.limits.max_queued
    while (behind < 2 or concurrency <= TRIED) and concurrency <= most:
        ended = load.closed_loop(concurrency, CLOSED_LOOP_S)
        goodput = sum(served_in_time(one, case, math.inf) for one in ended) / CLOSED_LOOP_S
        print(f"  closed loop of {concurrency}: {goodput:.1f}/s", flush=True)
        behind = behind + 1 if goodput < 1.03 * best else 0
        best, concurrency = max(best, goodput), 2 * concurrency
    return best


def served_in_time(one: Request, case: Case, end: float) -> bool:
    return one.error == "" and one.ended - one.sent <= case.deadline and one.ended <= end


def report(asked: Sequence[Request], case: Case, best: float, seconds: float) -> bool:
    """Print the figures; whether all aims are reached."""
    end = asked[0].due + seconds
    goodput = sum(served_in_time(one, case, end) for one in asked) / seconds
    served = took(asked, lambda error: error == "")
    refused = took(asked, lambda error: error.startswith("UNAVAILABLE"))
    overdue = took(asked, lambda error: error.startswith("DEADLINE_EXCEEDED"))
    endless = sum(one.error is None for one in asked)
    past = max([*served, *refused, *overdue]) - case.deadline
    print(f"  {len(asked)} requests at {len(asked) / seconds:.0f}/s, each with {case.deadline:g} s")
    print(f"  goodput {goodput:.1f}/s of a peak of {best:.1f}/s: {goodput / best:.0%}")
    print(f"  served   {len(served):7d}  {spread(served)}")
    print(f"  refused  {len(refused):7d}  {spread(refused)}")
    print(f"  overdue  {len(overdue):7d}  {spread(overdue)}; the last of all ended {past:+.3f} s from its deadline")
    print(f"  others   {len(asked) - len(served) - len(refused) - len(overdue):7d}, of which {endless} had no end")
    print(f"  the load sent late by  {spread(sorted(one.sent - one.due for one in asked))}")
    for what, count in Counter(re.sub(r"[\d.]+", "N", str(one.error)) for one in asked if one.error).most_common(6):
        print(f"  {count:7d} x {what[:150]}")
    in_time = endless == 0 and past <= SLACK_S
    return goodput >= SHARE * best and (not refused or percentile(refused, 0.99) <= REFUSAL_S) and in_time


def took(asked: Sequence[Request], kind: Callable[[str], bool]) -> list[float]:
    """Seconds from sending to the end of those that ended so, sorted."""
    return sorted(one.ended - one.sent for one in asked if one.error is not None and kind(one.error))


def spread(seconds: Sequence[float]) -> str:
    if not seconds:
        return "-"
    shares = {"50 %": 0.5, "95 %": 0.95, "99 %": 0.99, "max": 1.0}
    return ", ".join(f"{name} {percentile(seconds, share) * 1e3:.1f} ms" for name, share in shares.items())


def percentile(seconds: Sequence[float], share: float) -> float:
    return seconds[min(len(seconds) - 1, int(share * len(seconds)))]


if __name__ == "__main__":
    sys.exit(main())
