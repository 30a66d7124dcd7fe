"""What a server's /metrics tells of the stages of one pipeline."""

from __future__ import annotations

import re
import urllib.error
import urllib.request
from collections import defaultdict
from dataclasses import dataclass

from omni_python.glue import metric_names as names
from omni_python.glue.metric_names import Family
from omni_python.proto.errors import Unavailable

_LINE = re.compile(r"(\w+)\{(.*)\} (\S+)")
_LABEL = re.compile(r'(\w+)="([^"]*)"')
_TIMEOUT_S = 10.0
_GPU_MEMORY = "nv_gpu_memory_total_bytes"
"""Triton's own, by GPU."""


@dataclass(frozen=True)
class Batches:
    """How many steps a stage has done, and the requests in them: all, and their squares, step by step."""

    steps: float = 0.0
    rows: float = 0.0
    squares: float = 0.0

    def since(self, before: Batches) -> Batches:
        return Batches(self.steps - before.steps, self.rows - before.rows, self.squares - before.squares)


@dataclass(frozen=True)
class ServerMetrics:
    """By stage: its batches since the server's start, its GPU, its memory there in bytes; the `loops` are the stages
    that have a KV cache. `gpu_bytes` is the size of the server's smallest GPU."""

    batches: dict[str, Batches]
    gpus: dict[str, str]
    memory: dict[str, float]
    loops: frozenset[str]
    gpu_bytes: float | None


def read_metrics(url: str, pipeline: str) -> ServerMetrics:
    """Raises `Unavailable` where `url` (http://host:port/metrics) has no metrics of the pipeline's stages."""
    try:
        with urllib.request.urlopen(url, timeout=_TIMEOUT_S) as reply:
            text = reply.read().decode()
    except (OSError, ValueError) as error:
        raise Unavailable(f"no metrics at {url} ({error}); name them with --metrics") from None
    found = parse_metrics(text, pipeline)
    if not found.batches:
        raise Unavailable(
            f"{url} has no metrics of stages of {pipeline!r}; is it the server's, and OMNI_METRICS not 0?"
        )
    return found


def parse_metrics(text: str, pipeline: str) -> ServerMetrics:
    """What Prometheus' text format says of one pipeline."""
    counted: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    buckets: dict[str, dict[float, float]] = defaultdict(lambda: defaultdict(float))
    gpus: dict[str, str] = {}
    memory: dict[str, float] = defaultdict(float)
    sizes: list[float] = []
    bucket, total, count = names.BATCH.series
    for name, labels_text, number in _LINE.findall(text):
        labels, value = dict(_LABEL.findall(labels_text)), float(number)
        if name == _GPU_MEMORY:
            sizes.append(value)
        if labels.get("pipeline") != pipeline or "stage" not in labels:
            continue
        stage = labels["stage"]
        if name == bucket:
            buckets[stage][float(labels["le"])] += value
        elif name in (total, count, _only(names.KV_CAPACITY)):
            counted[name][stage] += value
        elif name == _only(names.GPU_LOADED):
            gpus.setdefault(stage, labels["gpu"])
            memory[stage] = max(memory[stage], value)
    batches = {
        stage: _batches(counted[count][stage], counted[total][stage], buckets[stage]) for stage in counted[count]
    }
    return ServerMetrics(
        batches, gpus, dict(memory), frozenset(counted[_only(names.KV_CAPACITY)]), min(sizes, default=None)
    )


def _only(family: Family) -> str:
    [name] = family.series
    return name


def _batches(steps: float, rows: float, cumulative: dict[float, float]) -> Batches:
    """The squares as if all batches of a bucket were as large, and together had what the others leave of the rows:
    exact up to 2 at once."""
    bounds = sorted(cumulative)
    numbers = [cumulative[bound] - (cumulative[bounds[i - 1]] if i else 0.0) for i, bound in enumerate(bounds)]
    sizes = [_middle(bounds[i - 1] if i else 0.0, bound) for i, bound in enumerate(bounds)]
    exact = sum(number * size for number, size in zip(numbers, sizes, strict=True) if size <= 2)
    guessed = sum(number * size for number, size in zip(numbers, sizes, strict=True) if size > 2)
    scale = (rows - exact) / guessed if guessed else 1.0
    squares = sum(
        number * (size if size <= 2 else size * scale) ** 2 for number, size in zip(numbers, sizes, strict=True)
    )
    return Batches(steps, rows, squares)


def _middle(below: float, bound: float) -> float:
    """The middle of the whole numbers in a bucket."""
    return (below + 1 + bound) / 2 if bound != float("inf") else below * 1.5
