"""The model of one stage process.

Triton starts and ends the process, and brings recordings to be replayed. The pipeline's requests come over the
process's own socket: calls through Triton (BLS) cost more, and hang where the process has died. So there is no call
that a request could leave running, and nothing for the `cancel()` that such calls have since 25.04: a request that ends
early is dropped by an `AbortMessage`, on every server.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import triton_python_backend_utils as pb_utils

from omni_python.glue.context import ModelContext
from omni_python.glue.metrics import MetricsWriter
from omni_python.glue.replay import ReplayModel
from omni_python.glue.stage_samples import held_by_process, totals_of_process
from omni_python.pipeline.build import build_stages, relay_settings
from omni_python.pipeline.place import process_place
from omni_python.pipeline.stage_process import StageProcess
from omni_python.pipeline.stats.gpu_memory import gpu_memory

DRAIN_TIMEOUT = 1.2
"""Seconds that an unloaded model waits for requests that need it. Triton kills a stub that takes 2 s to finalize, and
then aborts itself on the lock that the stub held (seen with 24.10)."""


class StageModel:
    """Owns the process's stages."""

    def __init__(self, context: ModelContext) -> None:
        assert context.process is not None
        config = context.config
        place = process_place(config, context.host, context.process, context.replica)
        memory = gpu_memory(config, context.process, context.replica)
        stages = build_stages(config, context.process, context.repository, context.replica, memory)
        self._process = StageProcess(
            config.resolved_name,
            context.process,
            stages,
            context.directory,
            relay_settings(config, context.process, context.replica),
            replica=context.replica,
            place=place,
        )
        self._process.start()
        self._replays = ReplayModel(self._process, f"{config.resolved_name}_{context.process}")
        held = functools.partial(held_by_process, self._process)
        totals = functools.partial(totals_of_process, self._process, memory)
        self._metrics = MetricsWriter(config.resolved_name, held, totals)
        self._metrics.start()

    def execute(self, requests: Sequence[Any]) -> None:
        for request in requests:
            self._replays.execute(request, pb_utils.get_input_tensor_by_name(request, "recording"))

    def is_ready(self) -> bool:
        """Whether this process can serve its pipeline; see `StageProcess.is_ready`."""
        return self._process.is_ready()

    def finalize(self) -> None:
        self._process.drain(DRAIN_TIMEOUT)
        self._metrics.stop()
        self._process.stop()
