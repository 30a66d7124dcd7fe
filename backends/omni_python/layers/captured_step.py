"""A step over few rows as one CUDA graph, with one copy of small inputs before it and one of results after it."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch

from omni_python.layers.cuda_graph import captured


class CapturedStep:
    """`function`, captured once for each power of two of rows; on the CPU called as it is.

    Its input is int32 [columns, rows] on the device, its output a tensor [rows, ...] there; columns of floats are
    written and read as their bits. `padding` is the column of a row that is not there. It must not look at values on
    the host, and whatever else it reads and writes must stay where it is.
    """

    def __init__(
        self,
        function: Callable[[torch.Tensor], torch.Tensor],
        padding: np.ndarray,
        max_rows: int,
        device: torch.device | str,
    ) -> None:
        self._function = function
        self._padding = padding
        self._max_rows = max_rows
        self._device = torch.device(device)
        self._sizes: dict[int, _Size] = {}
        self._stream: torch.cuda.Stream | None = None

    def prepare(self) -> None:
        """Compile and capture for every number of rows, which may take minutes the first time."""
        rows = 1
        while rows <= self._max_rows:
            self._size(rows)
            rows *= 2

    def run(self, columns: np.ndarray) -> torch.Tensor:
        """`columns` int32 [columns, rows] -> the output on the device, [rows, ...]; the next call overwrites it."""
        rows = columns.shape[1]
        size = self._size(1 << (rows - 1).bit_length())
        host = size.host_numpy
        host[:, :rows] = columns
        host[:, rows:] = self._padding[:, None]
        size.inputs.copy_(size.host, non_blocking=True)
        if size.graph is None:
            size.output = self._function(size.inputs)
        else:
            size.graph.replay()
        assert size.output is not None
        return size.output[:rows]

    def fetch(self, columns: np.ndarray, meanwhile: Callable[[], None]) -> np.ndarray:
        """`run`, with the output copied to the host; the next call overwrites it.

        `meanwhile` is called while the device computes.
        """
        output = self.run(columns)
        size = self._size(1 << (columns.shape[1] - 1).bit_length())
        if size.result is None or size.output is None:
            meanwhile()
            return output.numpy()
        size.result.copy_(size.output, non_blocking=True)
        meanwhile()
        torch.cuda.current_stream(self._device).synchronize()
        return size.result.numpy()[: columns.shape[1]]

    def _size(self, rows: int) -> _Size:
        if rows not in self._sizes:
            self._sizes[rows] = self._capture(rows)
        return self._sizes[rows]

    def _capture(self, rows: int) -> _Size:
        on_gpu = self._device.type == "cuda"
        host = torch.from_numpy(np.repeat(self._padding[:, None], rows, axis=1))
        size = _Size(host.pin_memory() if on_gpu else host, self._device)
        if not on_gpu:
            return size
        if self._stream is None:
            self._stream = torch.cuda.Stream(self._device)
        size.graph, output = captured(lambda: self._function(size.inputs), self._stream)
        size.output = output
        size.result = torch.empty(output.shape, dtype=output.dtype, pin_memory=True)
        return size


class _Size:
    """What is kept for one number of rows."""

    def __init__(self, host: torch.Tensor, device: torch.device) -> None:
        self.host = host
        self.host_numpy: np.ndarray = host.numpy()
        self.inputs = host.to(device)
        if self.inputs is host:
            self.inputs = host.clone()
        self.graph: torch.cuda.CUDAGraph | None = None
        self.output: torch.Tensor | None = None
        self.result: torch.Tensor | None = None
