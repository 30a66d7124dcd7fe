"""Replaying many small kernels with one launch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import torch

T = TypeVar("T")


def captured(function: Callable[[], T], stream: torch.cuda.Stream, pool: Any = None) -> tuple[torch.cuda.CUDAGraph, T]:
    """The work of `function` as a graph, and what it returned, which every replay overwrites.

    It is called twice, on `stream`: at first kernels are compiled, and libraries allocate their workspaces, neither of
    which can be captured. Graphs of one `pool` share their memory.
    """
    current = torch.cuda.current_stream(stream.device)
    stream.wait_stream(current)
    with torch.cuda.stream(stream):
        function()
    current.wait_stream(stream)
    current.synchronize()
    graph = torch.cuda.CUDAGraph()
    # Other stages of this process may use the device meanwhile, from their own threads.
    with torch.cuda.graph(graph, pool=pool, stream=stream, capture_error_mode="thread_local"):
        outputs = function()
    return graph, outputs


@dataclass(slots=True, frozen=True)
class _Captured:
    graph: torch.cuda.CUDAGraph
    inputs: tuple[torch.Tensor, ...]
    outputs: tuple[torch.Tensor, ...]


class GraphedOnCuda:
    """`function`, captured as a CUDA graph once for each shape of its inputs and each choice of its keyword arguments;
    on the CPU called as it is.

    All inputs and outputs are tensors of one device. `function` must do the same work for equal shapes, without a
    look at values on the host, and whatever memory it keeps must stay where it is. Calls must be ordered, as those on
    one stream are: the graphs share their memory.
    """

    def __init__(self, function: Callable[..., tuple[torch.Tensor, ...]]) -> None:
        self._function = function
        self._captured: dict[tuple[object, ...], _Captured] = {}
        self._stream: torch.cuda.Stream | None = None
        self._pool: Any = None

    def __call__(self, *inputs: torch.Tensor, **fixed: int) -> tuple[torch.Tensor, ...]:
        if not inputs[0].is_cuda:
            return self._function(*inputs, **fixed)
        key = (*(tensor.shape for tensor in inputs), *fixed.items())
        if key not in self._captured:
            self._captured[key] = self._capture(inputs, fixed)
        kept = self._captured[key]
        for place, tensor in zip(kept.inputs, inputs, strict=True):
            place.copy_(tensor)
        kept.graph.replay()
        return tuple(tensor.clone() for tensor in kept.outputs)

    def _capture(self, inputs: tuple[torch.Tensor, ...], fixed: dict[str, int]) -> _Captured:
        static = tuple(tensor.clone() for tensor in inputs)
        if self._stream is None:
            self._stream = torch.cuda.Stream(inputs[0].device)
            self._pool = torch.cuda.graph_pool_handle()
        graph, outputs = captured(lambda: self._function(*static, **fixed), self._stream, self._pool)
        return _Captured(graph, static, outputs)
