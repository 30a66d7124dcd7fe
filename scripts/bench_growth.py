"""How the runtime's cost grows, on no-op lines behind a real tritonserver: CPU milliseconds a request of the server.

    scripts/bench_growth [--starts N] [--rounds N] [--plot FILE.png] [--json FILE]
                         [--server-cpus LIST] [--load-cpus LIST]

with the requests at once (three stages, nothing in the messages), and with the answers that stream at once (two stages,
200 chunks of 4 KB to the client); with the stages of a line (one request and 16 at once); and with the orchestrators,
each of a three-stage pipeline of its own in one server (16 requests at once in all). The client's own CPU time does not
count, nor that of pipelines in the same server that are not asked.

All sizes of a series are measured in one server in turn, `--rounds` times, each round from the other end; and all of
that again in `--starts` servers, as some of what a process costs is the luck of its start. A table follows with medians
and quartiles over all rounds. What is wanted: at no concurrency more than 20 % above that of one request at once; a
straight line over the stages; the same for any number of orchestrators.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import statistics
import string
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import cpus
import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from raw_load import Load
from server_cost import ServerClock, cost

from omni_python.bench.plots import COLOURS
from omni_python.client._inputs import request_inputs
from omni_python.client._protocol import infer_request
from omni_python.config.compile import compile_pipeline
from omni_python.config.schema import PipelineConfig, StageConfig
from omni_python.models.noop.config import NoopForwardPipelineConfig
from omni_python.serve.server_options import ServerOptions
from omni_python.serve.triton_server import TritonServer

CONCURRENCY = (1, 2, 4, 8, 16, 32, 64)
STAGES = (1, 2, 3, 4, 6, 8)
ORCHESTRATORS = (1, 2, 3, 4)
AT_ONCE, WARM_UP = 16, 50
CHUNKS, CHUNK_BYTES = 200, 4096
FLAT = 1.2

REQUESTS, STREAMS, LINE_ALONE, LINE, PIPELINES = "requests", "streams", "stages, alone", "stages", "orchestrators"
LABELS = {
    REQUESTS: "requests at once",
    STREAMS: f"streams of {CHUNKS} chunks at once",
    LINE_ALONE: "stages, one request at once",
    LINE: f"stages, {AT_ONCE} requests at once",
    PIPELINES: "orchestrators",
}
LINES = (LINE_ALONE, LINE)
PANELS = {"requests at once": (REQUESTS,), LABELS[STREAMS]: (STREAMS,), "stages": LINES, "orchestrators": (PIPELINES,)}


@dataclass(frozen=True)
class Point:
    """CPU milliseconds of the server a request, and requests a second, with `size` of what `series` counts."""

    series: str
    size: int
    cpu_ms: float
    per_s: float


def line(stages: int, name: str = "") -> PipelineConfig:
    """A no-op line of so many stages, each in a process of its own."""
    name = name or f"line{stages}"
    factories = "omni_python.models.noop.stages"
    if stages == 1:
        only = StageConfig(name="a", process="a", factory=f"{factories}.create_alone", terminal=True)
        return PipelineConfig(name=name, model_path="none", stages=[only])
    names = string.ascii_lowercase[:stages]
    kinds = ["create_source", *["create_pass"] * (stages - 2), "create_sink"]
    made = [
        StageConfig(name=stage, process=stage, factory=f"{factories}.{kind}", next=following, terminal=not following)
        for stage, kind, following in zip(names, kinds, [*names[1:], None], strict=True)
    ]
    return PipelineConfig(name=name, model_path="none", stages=made)


@dataclass(frozen=True)
class Case:
    """One point: `requests` to these pipelines alike, `at_once` of them in flight."""

    series: str
    size: int
    pipelines: tuple[str, ...]
    at_once: int
    requests: int
    sampling: tuple[tuple[str, int], ...] = ()


def concurrency_cases(requests: int) -> tuple[list[PipelineConfig], list[Case]]:
    asked = (("chunks", CHUNKS), ("chunk_bytes", CHUNK_BYTES))
    cases = [Case(REQUESTS, size, ("line3",), size, requests) for size in CONCURRENCY]
    cases += [Case(STREAMS, size, ("noop_forward",), size, max(CONCURRENCY), asked) for size in CONCURRENCY]
    return [line(3), NoopForwardPipelineConfig()], cases


def stages_cases(requests: int) -> tuple[list[PipelineConfig], list[Case]]:
    cases = [
        Case(series, size, (f"line{size}",), at_once, requests)
        for series, at_once in ((LINE_ALONE, 1), (LINE, AT_ONCE))
        for size in STAGES
    ]
    return [line(size) for size in STAGES], cases


def orchestrators_cases(requests: int) -> tuple[list[PipelineConfig], list[Case]]:
    names = [f"orchestrator{number}" for number in range(max(ORCHESTRATORS))]
    cases = [Case(PIPELINES, count, tuple(names[:count]), AT_ONCE, requests) for count in ORCHESTRATORS]
    return [line(3, name) for name in names], cases


def measured(
    pipelines: Sequence[PipelineConfig], cases: Sequence[Case], rounds: int, server_cpus: Sequence[int]
) -> Iterator[Point]:
    """All cases in one server, `rounds` times, in turn forwards and backwards."""
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as loads:
        for pipeline in pipelines:
            compile_pipeline(pipeline, Path(folder))
        with cpus.pinned(server_cpus):
            server = TritonServer.start(ServerOptions(model_repository=Path(folder)))
        with server:
            time.sleep(1)
            clock = ServerClock(server)
            ready = [(case, loads.enter_context(loading(server, case))) for case in cases]
            for number in range(rounds):
                for case, load in ready if number % 2 else reversed(ready):
                    found, _ = cost(clock, load, case.requests, case.at_once, case.pipelines)
                    yield Point(case.series, case.size, found.cpu_ms, found.rate)


@contextlib.contextmanager
def loading(server: TritonServer, case: Case) -> Iterator[Load]:
    inputs = request_inputs("x", {"sampling": dict(case.sampling)}, stream=bool(case.sampling))
    load = Load(server.grpc_url, [infer_request(pipeline, inputs) for pipeline in case.pipelines])
    try:
        load.batch(min(WARM_UP, case.requests), case.at_once)
        yield load
    finally:
        load.close()


def by_size(points: Sequence[Point]) -> dict[str, dict[int, list[float]]]:
    """Costs of all rounds, by series and size."""
    found: dict[str, dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    for point in sorted(points, key=lambda point: point.size):
        found[point.series][point.size].append(point.cpu_ms)
    return found


def quartiles(values: Sequence[float]) -> tuple[float, float, float]:
    """The first one, the median and the third."""
    low, median, high = np.percentile(values, [25, 50, 75])
    return float(low), float(median), float(high)


def straight(costs: Mapping[int, Sequence[float]]) -> tuple[float, float]:
    """Milliseconds that each one more adds, and those beside, fitted to the medians."""
    slope, rest = np.polyfit(list(costs), [statistics.median(values) for values in costs.values()], 1)
    return float(slope), float(rest)


def print_table(found: Mapping[str, Mapping[int, Sequence[float]]]) -> None:
    print(f"\n{'':<32}{'':>4}{'CPU ms a request':>18}{'quartiles':>16}{'rounds':>8}{'to the first':>14}")
    for series, costs in found.items():
        first = statistics.median(next(iter(costs.values())))
        for size, values in costs.items():
            low, median, high = quartiles(values)
            spread = f"{low:.3f} - {high:.3f}"
            print(f"{LABELS[series]:<32}{size:>4}{median:>18.3f}{spread:>16}{len(values):>8}{median / first:>13.2f}x")
    for series, costs in found.items():
        medians = {size: statistics.median(values) for size, values in costs.items()}
        if series in LINES:
            slope, rest = straight(costs)
            off = max(abs(median - rest - slope * size) / median for size, median in medians.items())
            print(f"{LABELS[series]}: {slope:.3f} ms each and {rest:.3f} ms beside; at most {off:.0%} off that line")
        else:
            most = max(medians.values()) / next(iter(medians.values()))
            print(f"{LABELS[series]}: {'flat' if most <= FLAT else 'NOT flat'} (at most {most:.2f} times the first)")


def save_plot(found: Mapping[str, Mapping[int, Sequence[float]]], path: Path) -> None:
    """Medians, with bars from the first to the third quartile of the rounds."""
    with matplotlib.rc_context({"font.size": 9, "axes.grid": True, "grid.alpha": 0.3}):
        drawn = Figure(figsize=(12, 3.2), layout="constrained")
        panels = drawn.subplots(1, len(PANELS))
        for axes, (title, shown) in zip(panels, PANELS.items(), strict=True):
            for number, series in enumerate(shown):
                if costs := found.get(series):
                    _draw(axes, series, costs, COLOURS[number])
            axes.set(xlabel=title)
        panels[0].set_ylabel("CPU ms per request, whole server")
        drawn.savefig(path, dpi=120)


def _draw(axes: Axes, series: str, costs: Mapping[int, Sequence[float]], colour: str) -> None:
    lows, medians, highs = np.array([quartiles(values) for values in costs.values()]).T
    sizes = list(costs)
    bars = (medians - lows, highs - medians)
    axes.errorbar(sizes, medians, bars, color=colour, marker="o", capsize=3, linestyle="")
    if series in LINES:
        slope, rest = straight(costs)
        label = f"{LABELS[series].removeprefix('stages, ')}: {slope:.2f} ms each + {rest:.2f} ms"
        axes.plot(sizes, [rest + slope * size for size in sizes], color=colour, linestyle="--", label=label)
    else:
        axes.plot(sizes, medians, color=colour)
        axes.axhline(FLAT * medians[0], color=COLOURS[1], linestyle="--", label=f"{FLAT:g} times the first")
    if series in (REQUESTS, STREAMS):
        axes.set_xscale("log", base=2)
    axes.set_xticks(sizes, [str(size) for size in sizes])
    axes.minorticks_off()
    axes.set_ylim(0, max(axes.get_ylim()[1], 1.15 * max(*highs, FLAT * medians[0])))
    axes.legend(fontsize=7, loc="lower right")


PARTS = {"concurrency": concurrency_cases, "stages": stages_cases, "orchestrators": orchestrators_cases}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--starts", type=int, default=2, help="in how many servers to measure (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=6, help="how often in each of them (default: %(default)s)")
    parser.add_argument("--requests", type=int, default=600, help="at each point (default: %(default)s)")
    parser.add_argument("--only", default=",".join(PARTS), help="what to vary (default: %(default)s)")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw it")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all points there")
    cpus.add_options(parser)
    args = parser.parse_args()
    cpus.pin(args.load_cpus)
    chosen = args.only.split(",")
    if unknown := sorted(set(chosen) - set(PARTS)):
        parser.error(f"--only: {unknown[0]} is not among {', '.join(PARTS)}")
    points: list[Point] = []
    try:
        for _ in range(args.starts):
            for name in chosen:
                for point in measured(*PARTS[name](args.requests), args.rounds, args.server_cpus):
                    print(json.dumps(asdict(point)), flush=True)
                    points.append(point)
    finally:  # also after Ctrl-C, with the rounds until then
        if points:
            found = by_size(points)
            print_table(found)
            if args.json:
                args.json.write_text(json.dumps([asdict(point) for point in points], indent=1))
            if args.plot:
                save_plot(found, args.plot)


if __name__ == "__main__":
    main()
