"""How the runtime's cost grows, on no-op lines behind a real tritonserver: CPU milliseconds a request of the server.

    scripts/bench_growth [--rounds N] [--plot FILE.png] [--json FILE]

with the requests at once (three stages, nothing in the messages), and with the answers that stream at once (two stages,
200 chunks of 4 KB to the client); with the stages of a line (16 requests at once); and with the orchestrators, each of
a three-stage pipeline of its own in one server (16 requests at once in all). The client's own CPU time does not count.

A table follows with medians and ranges over the rounds. What is wanted: at no concurrency more than 20 % above that of
one request at once; a straight line over the stages; the same for any number of orchestrators.
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
from typing import Any

import matplotlib
import numpy as np
import psutil
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from raw_load import Load

from omni_python.bench.plots import COLOURS
from omni_python.bench.usage import UsageSampler
from omni_python.client._inputs import request_inputs
from omni_python.client._protocol import infer_request
from omni_python.config.compile import compile_pipeline
from omni_python.config.schema import PipelineConfig, StageConfig
from omni_python.models.noop.config import NoopForwardPipelineConfig
from omni_python.serve.triton_server import ServerOptions, TritonServer

CONCURRENCY = (1, 2, 4, 8, 16, 32, 64)
STAGES = (1, 2, 3, 4, 6, 8)
ORCHESTRATORS = (1, 2, 3, 4)
AT_ONCE, WARM_UP = 16, 50
CHUNKS, CHUNK_BYTES = 200, 4096
FLAT = 1.2
NO_SAMPLES_BETWEEN_S = 3600.0

REQUESTS, STREAMS, LINE, PIPELINES = "requests", "streams", "stages", "orchestrators"
AXES = {
    REQUESTS: "requests at once",
    STREAMS: f"streams of {CHUNKS} chunks at once",
    LINE: "stages",
    PIPELINES: "orchestrators",
}


@dataclass(frozen=True)
class Point:
    """CPU milliseconds of the server a request, and requests a second, with `size` of what `series` counts."""

    series: str
    size: int
    cpu_ms: float
    per_s: float


def line(stages: int, name: str = "noop_line") -> PipelineConfig:
    """A no-op line of so many stages, each in a process of its own."""
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


@contextlib.contextmanager
def serving(*pipelines: PipelineConfig) -> Iterator[TritonServer]:
    with tempfile.TemporaryDirectory() as folder:
        for pipeline in pipelines:
            compile_pipeline(pipeline, Path(folder))
        with TritonServer.start(ServerOptions(model_repository=Path(folder))) as server:
            time.sleep(1)
            yield server


@contextlib.contextmanager
def loading(
    server: TritonServer, pipelines: Sequence[str], sampling: dict[str, Any], stream: bool = False
) -> Iterator[Load]:
    """A load that goes to all these pipelines alike."""
    inputs = request_inputs("x", {"sampling": sampling}, stream=stream)
    load = Load(server.grpc_url, [infer_request(pipeline, inputs) for pipeline in pipelines])
    try:
        yield load
    finally:
        load.close()


def cost(server: TritonServer, load: Load, total: int, concurrency: int) -> tuple[float, float]:
    """CPU milliseconds a request, and requests a second."""
    with UsageSampler(psutil.Process(server.process.pid), [], NO_SAMPLES_BETWEEN_S) as usage:
        start = time.monotonic()
        ended = load.batch(total, concurrency)
        end = time.monotonic()
    if failed := [request.error for request in ended if request.error]:
        raise SystemExit(f"{len(failed)} requests failed: {failed[0]}")
    return sum(usage.cpu_seconds(start, end).values()) / total * 1e3, total / (end - start)


def with_concurrency(requests: int) -> Iterator[Point]:
    with serving(line(3), NoopForwardPipelineConfig()) as server:
        with loading(server, ["noop_line"], {}) as load:
            load.batch(WARM_UP, AT_ONCE)
            for concurrency in CONCURRENCY:
                yield Point(REQUESTS, concurrency, *cost(server, load, requests, concurrency))
        with loading(server, ["noop_forward"], {"chunks": CHUNKS, "chunk_bytes": CHUNK_BYTES}, stream=True) as load:
            load.batch(2, 1)
            for concurrency in CONCURRENCY:
                total = max(requests // 20, concurrency)
                yield Point(STREAMS, concurrency, *cost(server, load, total, concurrency))


def with_stages(requests: int) -> Iterator[Point]:
    for stages in STAGES:
        with serving(line(stages)) as server, loading(server, ["noop_line"], {}) as load:
            load.batch(WARM_UP, AT_ONCE)
            yield Point(LINE, stages, *cost(server, load, requests, AT_ONCE))


def with_orchestrators(requests: int) -> Iterator[Point]:
    for count in ORCHESTRATORS:
        names = [f"noop_line_{number}" for number in range(count)]
        with serving(*(line(3, name) for name in names)) as server, loading(server, names, {}) as load:
            load.batch(WARM_UP, AT_ONCE)
            yield Point(PIPELINES, count, *cost(server, load, requests, AT_ONCE))


def by_size(rounds: Sequence[Point]) -> dict[str, dict[int, list[float]]]:
    """Costs of all rounds, by series and size."""
    found: dict[str, dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    for point in rounds:
        found[point.series][point.size].append(point.cpu_ms)
    return found


def straight(costs: Mapping[int, Sequence[float]]) -> tuple[float, float]:
    """Milliseconds that each one more adds, and those beside, fitted to the medians."""
    slope, rest = np.polyfit(list(costs), [statistics.median(values) for values in costs.values()], 1)
    return float(slope), float(rest)


def print_table(found: Mapping[str, Mapping[int, Sequence[float]]]) -> None:
    print(f"\n{'':<32}{'':>4}{'CPU ms a request':>18}{'range':>16}{'to the first':>14}")
    for series, costs in found.items():
        first = statistics.median(next(iter(costs.values())))
        for size, values in costs.items():
            median = statistics.median(values)
            spread = f"{min(values):.2f} - {max(values):.2f}"
            print(f"{AXES[series]:<32}{size:>4}{median:>18.2f}{spread:>16}{median / first:>13.2f}x")
    for series in (REQUESTS, STREAMS, PIPELINES):
        if costs := found.get(series):
            medians = [statistics.median(values) for values in costs.values()]
            flat = max(medians) <= FLAT * medians[0]
            print(
                f"{AXES[series]}: {'flat' if flat else 'NOT flat'} (at most {max(medians) / medians[0]:.2f} times one)"
            )
    if costs := found.get(LINE):
        slope, rest = straight(costs)
        off = max(abs(statistics.median(v) - rest - slope * n) / statistics.median(v) for n, v in costs.items())
        print(f"stages: {slope:.2f} ms each and {rest:.2f} ms beside; at most {off:.0%} off that line")


def save_plot(found: Mapping[str, Mapping[int, Sequence[float]]], path: Path) -> None:
    """Medians, with bars from the smallest to the largest of the rounds."""
    with matplotlib.rc_context({"font.size": 9, "axes.grid": True, "grid.alpha": 0.3}):
        drawn = Figure(figsize=(12, 3.2), layout="constrained")
        panels = drawn.subplots(1, 4)
        for axes, series in zip(panels, AXES, strict=True):
            if costs := found.get(series):
                _panel(axes, series, costs)
            axes.set(xlabel=AXES[series])
        panels[0].set_ylabel("CPU ms per request, whole server")
        drawn.savefig(path, dpi=120)


def _panel(axes: Axes, series: str, costs: Mapping[int, Sequence[float]]) -> None:
    medians = np.array([statistics.median(values) for values in costs.values()])
    lows, highs = (np.array([side(values) for values in costs.values()]) for side in (min, max))
    sizes = list(costs)
    axes.errorbar(sizes, medians, (medians - lows, highs - medians), color=COLOURS[0], marker="o", capsize=3)
    if series == LINE:
        slope, rest = straight(costs)
        label = f"{slope:.2f} ms each + {rest:.2f} ms"
        axes.plot(sizes, [rest + slope * n for n in sizes], color=COLOURS[1], linestyle="--", label=label)
    else:
        label = f"{FLAT:g} times the first"
        axes.axhline(FLAT * medians[0], color=COLOURS[1], linestyle="--", label=label)
    if series in (REQUESTS, STREAMS):
        axes.set_xscale("log", base=2)
    axes.set_xticks(sizes, [str(size) for size in sizes])
    axes.minorticks_off()
    axes.set_ylim(0, 1.15 * max(*highs, FLAT * medians[0]))
    axes.legend(fontsize=8, loc="lower right")


PARTS = {"concurrency": with_concurrency, "stages": with_stages, "orchestrators": with_orchestrators}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5, help="how often to measure (default: %(default)s)")
    parser.add_argument("--requests", type=int, default=1000, help="at each point (default: %(default)s)")
    parser.add_argument("--only", default=",".join(PARTS), help="what to vary (default: %(default)s)")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw it")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all points there")
    args = parser.parse_args()
    chosen = args.only.split(",")
    if unknown := sorted(set(chosen) - set(PARTS)):
        parser.error(f"--only: {unknown[0]} is not among {', '.join(PARTS)}")
    points: list[Point] = []
    for _ in range(args.rounds):
        for name in chosen:
            for point in PARTS[name](args.requests):
                print(json.dumps(asdict(point)), flush=True)
                points.append(point)
    found = by_size(points)
    print_table(found)
    if args.json:
        args.json.write_text(json.dumps([asdict(point) for point in points], indent=1))
    if args.plot:
        save_plot(found, args.plot)


if __name__ == "__main__":
    main()
