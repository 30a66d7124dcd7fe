"""Output tensors that are the same in many responses, made once: to make one costs about as much as to send it."""

from __future__ import annotations

from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils

KEPT = 256
"""Tensors, of which each takes some 200 bytes of the memory that Triton shares with a stub; the first ones stay."""

_sent: dict[tuple[str, str | int], Any] = {}


class RepeatedTensors:
    """Those of one response. All of them must be outputs that the client has requested: Triton sends no others.

    Triton copies a tensor to shared memory when it is sent first, and counts in there who reads it: from then on any
    thread may send it again. So other responses get a tensor only after `sent`.
    """

    def __init__(self) -> None:
        self._fresh: dict[tuple[str, str | int], Any] = {}

    def text(self, name: str, value: str) -> Any:
        """BYTES [1]"""
        found = _sent.get((name, value))
        if found is None:
            found = self._fresh[name, value] = pb_utils.Tensor(name, np.array([value.encode()], np.object_))
        return found

    def count(self, name: str, value: int) -> Any:
        """UINT32 [1]"""
        found = _sent.get((name, value))
        if found is None:
            found = self._fresh[name, value] = pb_utils.Tensor(name, np.array([value], np.uint32))
        return found

    def sent(self) -> None:
        """The response was sent."""
        if self._fresh and len(_sent) < KEPT:
            _sent.update(self._fresh)
