"""Measuring on a GPU: how long it takes there, and how far it is from what is expected."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

DEVICE = "cuda:0"
BF16 = torch.bfloat16


@dataclass(frozen=True)
class Bench:
    """What is measured, a published model's configuration and so many of its thinker's `layers`, and where: a copy has
    `bandwidth` bytes a second."""

    config: Any
    config_path: Path
    layers: int
    bandwidth: float

    def floor(self, weights: int) -> float:
        """Milliseconds that reading `weights` bytes takes."""
        return weights / self.bandwidth * 1e3


def randn(*shape: int, scale: float = 1.0, dtype: torch.dtype = BF16) -> torch.Tensor:
    return (torch.randn(*shape, device=DEVICE) * scale).to(dtype)


def error(got: torch.Tensor, expected: torch.Tensor) -> float:
    return float((got.double() - expected.double()).norm() / expected.double().norm())


def expect(name: str, value: float, most: float) -> None:
    print(f"  {name}: relative error {value:.2e}", flush=True)
    if not value < most:
        raise AssertionError(f"{name}: {value} is not below {most}")


def copy_bandwidth() -> float:
    source = torch.empty(2**30, device=DEVICE, dtype=torch.uint8).random_()
    target = torch.empty_like(source)
    return 2 * 2**30 / (events(lambda: target.copy_(source), 20) / 1e3)


def wall(step: Callable[[], None], steps: int) -> float:
    """Median milliseconds from the end of one step to the end of the next; a step waits for its result."""
    for _ in range(5):
        step()
    times = []
    for _ in range(steps):
        start = time.perf_counter()
        step()
        times.append((time.perf_counter() - start) * 1e3)
    return statistics.median(times)


def events(run: Callable[[], Any], repeats: int = 50) -> float:
    """Median milliseconds on the device."""
    for _ in range(3):
        run()
    times = []
    for _ in range(repeats):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        run()
        end.record()
        torch.cuda.synchronize()
        times.append(begin.elapsed_time(end))
    return statistics.median(times)


def graph_of(run: Callable[[], Any]) -> Callable[[], None]:
    with side_stream():
        run()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    return graph.replay


@contextmanager
def side_stream() -> Iterator[None]:
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        yield
    torch.cuda.current_stream().wait_stream(stream)


def kernels_of(run: Callable[[], Any]) -> int:
    """How many kernels, copies and fills a run is for the device."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as recorded:
        run()
        torch.cuda.synchronize()
    return sum(event.device_type == torch.autograd.DeviceType.CUDA for event in recorded.events() or ())


def finished(run: Callable[[], Any]) -> Callable[[], None]:
    """`run`, and then wait for the device."""

    def whole() -> None:
        run()
        torch.cuda.synchronize()

    return whole


def print_kernels(graph: Any, name: str) -> None:
    """The kernels of a captured graph that take longest, with their times."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as recorded:
        graph.replay()
        torch.cuda.synchronize()
    print(f"  kernels of the graph of {name}:")
    kernels = sorted(recorded.key_averages(), key=lambda each: -each.device_time_total)
    for kernel in kernels[:14]:
        print(f"    {kernel.device_time_total / 1e3:8.3f} ms {kernel.count:5d} x {kernel.key[:90]}")
