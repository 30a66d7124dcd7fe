"""Replays on a stage's model: a request with a recording is answered with what the stage makes of it."""

from __future__ import annotations

import logging
import os
import threading
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils

from omni_python import __version__
from omni_python.glue.response import send_error
from omni_python.pipeline.recording.replay import replay
from omni_python.pipeline.stage_process import StageProcess
from omni_python.proto.errors import Cancelled, InvalidArgument, OmniError, Unavailable, Unsupported
from omni_python.proto.recording import ALLOW_REPLAY, MAGIC, End, Header, decode_recording, encode_frame

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
        """Answers `request`, whose input tensor is `recording`, on a thread of its own."""
        sender = request.get_response_sender()
        if not self._allowed:
            why = "this server does not replay recordings; its operator can start it with `--allow-replay`"
            send_error(sender, Unsupported(why))
        elif not self._room.acquire(blocking=False):
            send_error(sender, Unavailable(f"{MAX_REPLAYS} replays run already; try again later"))
        else:
            data = recording.as_numpy().tobytes()
            threading.Thread(target=self._run, args=(sender, data), name="omni-replay", daemon=True).start()

    def _run(self, sender: Any, data: bytes) -> None:
        try:
            self._replay(sender, data)
        except Exception as error:
            if not isinstance(error, OmniError):
                log.exception("a replay failed")
            if not isinstance(error, Cancelled):
                send_error(sender, OmniError.of(error))
            else:
                sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
        finally:
            self._room.release()

    def _replay(self, sender: Any, data: bytes) -> None:
        recording = decode_recording(data)
        given = recording.header
        stage = self._process.stages.get(given.stage)
        if stage is None:
            raise InvalidArgument(
                f"model {self._model} has no stage {given.stage!r}; its stages are {', '.join(self._process.stages)}"
            )
        header = Header(given.pipeline, given.stage, self._model, given.request_id, given.sampling, "", __version__)
        _send(sender, MAGIC + encode_frame(header))
        for output in replay(stage, recording, sender.is_cancelled):
            _send(sender, encode_frame(output))
        _send(sender, encode_frame(End()), pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)


def _send(sender: Any, data: bytes, flags: int = 0) -> None:
    tensor = pb_utils.Tensor("reply", np.frombuffer(data, np.uint8))
    sender.send(pb_utils.InferenceResponse([tensor]), flags=flags)
