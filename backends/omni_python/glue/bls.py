"""Calls from the orchestrator to a stage's model, by Triton's business logic scripting (BLS)."""

from __future__ import annotations

import collections
import threading
import time
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils

from omni_python.proto.errors import Unavailable

KEEP_ALIVE = 1.0
"""Seconds to hold on to a response iterator after its end. Triton (24.10 to at least 26.07) frees it without the GIL
when Python lets go first, which crashes the stub under load."""


def call_stage(model: str, message: bytes) -> bytes:
    """Send a message to a stage's model and return its one reply. Blocks. Raises `Unavailable`."""
    tensor = pb_utils.Tensor("message", np.frombuffer(message, np.uint8))
    request = pb_utils.InferenceRequest(model_name=model, requested_output_names=["reply"], inputs=[tensor])
    iterator = request.exec(decoupled=True)
    reply = b""
    error = ""
    for response in iterator:
        if response.has_error():
            error = response.error().message()
        elif response.output_tensors():
            reply = response.output_tensors()[0].as_numpy().tobytes()
    _keep(iterator)
    if error or not reply:
        raise Unavailable(error or f"model {model} gave no reply")
    return reply


_kept: collections.deque[tuple[float, Any]] = collections.deque()
_kept_lock = threading.Lock()


def _keep(iterator: Any) -> None:
    now = time.monotonic()
    old = []
    with _kept_lock:
        _kept.append((now, iterator))
        while now - _kept[0][0] > KEEP_ALIVE:
            old.append(_kept.popleft())
    del old  # here, on a Python thread with the GIL
