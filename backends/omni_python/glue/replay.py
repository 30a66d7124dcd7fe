"""Replays on a stage's model: a request with a recording is answered with what the stage makes of it."""

from __future__ import annotations

import logging
import os
import threading
from typing import Any

import msgspec
import numpy as np
import triton_python_backend_utils as pb_utils

from omni_python import __version__
from omni_python.glue.response import send_error
from omni_python.pipeline.recording.replay import replay
from omni_python.pipeline.stage_process import StageProcess
from omni_python.proto.errors import InvalidArgument, OmniError, Unavailable, Unsupported
from omni_python.proto.recording import ALLOW_REPLAY, MAGIC, End, Recording, decode_recording, encode_frame

MAX_REPLAYS = 32
"""At once in a process: they go beside the coordinator's limits."""

log = logging.getLogger(__name__)


class ReplayModel:
    """Answers one after the other are parts of a recording that has outputs alone."""

    def __init__(self, process: StageProcess, model: str) -> None:
        self._process = process
        self._model = model
        self._allowed = os.environ.get(ALLOW_REPLAY, "") not in ("", "0")
        self._room = threading.BoundedSemaphore(MAX_REPLAYS)

    def execute(self, request: Any, recording: Any) -> None:
        """Answers `request`, whose input tensor is `recording`, on a thread of its own; what is refused, at once."""
        sender = request.get_response_sender()
        try:
            given = self._admitted(recording.as_numpy().tobytes())
        except Exception as error:
            _fail(sender, error)
        else:
            threading.Thread(target=self._run, args=(sender, given), name="omni-replay", daemon=True).start()

    def _admitted(self, data: bytes) -> Recording:
        """What there is to replay, in one of the places for it."""
        if not self._allowed:
            raise Unsupported("this server does not replay recordings; its operator can start it with `--allow-replay`")
        given = decode_recording(data)
        if given.header.stage not in self._process.stages:
            stages = ", ".join(self._process.stages)
            raise InvalidArgument(f"model {self._model} has no stage {given.header.stage!r}; its stages are {stages}")
        if not self._room.acquire(blocking=False):
            raise Unavailable(f"{MAX_REPLAYS} replays run already; try again later")
        return given

    def _run(self, sender: Any, given: Recording) -> None:
        try:
            self._replay(sender, given)
        except Exception as error:
            _fail(sender, error)
        finally:
            self._room.release()

    def _replay(self, sender: Any, given: Recording) -> None:
        header = msgspec.structs.replace(given.header, model=self._model, created="", software=__version__)
        _send(sender, MAGIC + encode_frame(header))
        for output in replay(self._process.stages[given.header.stage], given, sender.is_cancelled):
            _send(sender, encode_frame(output))
        _send(sender, encode_frame(End()), pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)


def _send(sender: Any, data: bytes, flags: int = 0) -> None:
    tensor = pb_utils.Tensor("reply", np.frombuffer(data, np.uint8))
    sender.send(pb_utils.InferenceResponse([tensor]), flags=flags)


def _fail(sender: Any, error: Exception) -> None:
    if not isinstance(error, OmniError):
        log.error("a replay failed", exc_info=error)
    send_error(sender, OmniError.of(error))
