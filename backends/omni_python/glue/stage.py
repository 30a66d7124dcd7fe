"""The model of one stage process: it takes submissions; everything else goes over its own socket."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
import triton_python_backend_utils as pb_utils

from omni_python.glue.context import ModelContext
from omni_python.glue.metrics import MetricsWriter
from omni_python.glue.replay import ReplayModel
from omni_python.glue.stage_samples import held_by_process, totals_of_process
from omni_python.pipeline.build import build_stages, relay_settings
from omni_python.pipeline.stage_process import StageProcess
from omni_python.pipeline.stats.gpu_memory import gpu_memory
from omni_python.proto.errors import InvalidArgument
from omni_python.proto.messages import SubmitMessage, SubmitReply, WireError, decode_message

DRAIN_TIMEOUT = 1.2
"""Seconds that an unloaded model waits for requests that need it. Triton kills a stub that takes 2 s to finalize, and
then aborts itself on the lock that the stub held (seen with 24.10)."""


class StageModel:
    """Owns the process's stages."""

    def __init__(self, context: ModelContext) -> None:
        assert context.process is not None
        config = context.config
        memory = gpu_memory(config, context.process, context.replica)
        stages = build_stages(config, context.process, context.repository, context.replica, memory)
        self._process = StageProcess(
            config.resolved_name,
            context.process,
            stages,
            context.directory,
            relay_settings(config, context.process, context.replica),
            replica=context.replica,
        )
        self._process.start()
        self._replays = ReplayModel(self._process, f"{config.resolved_name}_{context.process}")
        held = functools.partial(held_by_process, self._process)
        totals = functools.partial(totals_of_process, self._process, memory)
        self._metrics = MetricsWriter(config.resolved_name, held, totals)
        self._metrics.start()

    def execute(self, requests: Sequence[Any]) -> None:
        for request in requests:
            recording = pb_utils.get_input_tensor_by_name(request, "recording")
            if recording is not None:
                self._replays.execute(request, recording)
                continue
            reply = msgspec.msgpack.encode(self._answer(request))
            tensor = pb_utils.Tensor("reply", np.frombuffer(reply, np.uint8))
            request.get_response_sender().send(
                pb_utils.InferenceResponse([tensor]), flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL
            )

    def finalize(self) -> None:
        self._process.drain(DRAIN_TIMEOUT)
        self._metrics.stop()
        self._process.stop()

    def _answer(self, request: Any) -> SubmitReply:
        """Errors go inside the reply: BLS loses those that are not a first response."""
        tensor = pb_utils.get_input_tensor_by_name(request, "message")
        if tensor is None:
            return SubmitReply(0, WireError.of(InvalidArgument("give `message`, or `recording`")))
        try:
            message = decode_message(tensor.as_numpy().tobytes())
        except msgspec.MsgspecError as error:
            return SubmitReply(0, WireError.of(InvalidArgument(f"`message` is no encoded message: {error}")))
        if not isinstance(message, SubmitMessage):
            return SubmitReply(0, WireError.of(InvalidArgument("a stage's model takes SubmitMessages")))
        return self._process.submit(message)
