"""A loop that computes with torch."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch

from omni_python.proto.work import IncomingMessage
from omni_python.scheduling.loop import LoopScheduler


class TorchLoopScheduler(LoopScheduler):
    """`take`, `drop` and `work` are called under `torch.inference_mode`.

    On a GPU `stream`, where it is set before the start, is their current stream, so that stages of one process do not
    wait for each other. What messages bring is ordered on the default stream (see `relay.device`).
    """

    stream: torch.cuda.Stream | None = None

    @torch.inference_mode()
    def _run(self) -> None:
        with contextlib.nullcontext() if self.stream is None else torch.cuda.stream(self.stream):
            super()._run()

    def _take_safely(self, message: IncomingMessage) -> None:
        with self._ordered():
            super()._take_safely(message)

    @contextlib.contextmanager
    def _ordered(self) -> Iterator[None]:
        """What is done meanwhile comes after all work on the default stream, and later work there comes after it."""
        if self.stream is None:
            yield
            return
        default = torch.cuda.default_stream(self.stream.device)
        self.stream.wait_stream(default)
        try:
            yield
        finally:
            default.wait_stream(self.stream)
