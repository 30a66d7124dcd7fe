"""Replaying many small kernels with one launch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch


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
        captured = self._captured[key]
        for place, tensor in zip(captured.inputs, inputs, strict=True):
            place.copy_(tensor)
        captured.graph.replay()
        return tuple(tensor.clone() for tensor in captured.outputs)

    def _capture(self, inputs: tuple[torch.Tensor, ...], fixed: dict[str, int]) -> _Captured:
        static = tuple(tensor.clone() for tensor in inputs)
        if self._stream is None:
            self._stream = torch.cuda.Stream(inputs[0].device)
            self._pool = torch.cuda.graph_pool_handle()
        stream = self._stream
        stream.wait_stream(torch.cuda.current_stream(inputs[0].device))
        with torch.cuda.stream(stream):
            self._function(*static, **fixed)  # libraries allocate their workspaces in their first call
        torch.cuda.current_stream(inputs[0].device).wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        # Other stages of this process may use the device meanwhile, from their own threads.
        with torch.cuda.graph(graph, pool=self._pool, stream=stream, capture_error_mode="thread_local"):
            outputs = self._function(*static, **fixed)
        return _Captured(graph, static, outputs)
