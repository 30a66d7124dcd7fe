"""Stages that treat their inputs well or badly, for the test of the read-only rule."""

from __future__ import annotations

import threading
import time

import numpy as np
import torch

from omni_python.proto.payload import Payload, TextOutput
from omni_python.proto.request import OmniRequest
from omni_python.scheduling.base import Scheduler
from omni_python.scheduling.simple import SimpleScheduler


class Shared(Payload):
    tensor: torch.Tensor
    array: np.ndarray
    numbers: list[int]


def create_source() -> Scheduler:
    def compute(request: OmniRequest) -> Shared:
        return Shared(torch.zeros(5), np.zeros(5), [1, 2])

    return SimpleScheduler(compute)


class _Recycler(SimpleScheduler):
    """Hands over the same payload again and again, and writes to it in between."""

    def __init__(self) -> None:
        super().__init__(self._compute)
        self._kept = Shared(torch.zeros(5), np.zeros(5), [])

    def _compute(self, request: OmniRequest) -> Shared:
        threading.Timer(0.1, self._kept.array.fill, (1.0,)).start()
        return self._kept


def create_recycler() -> Scheduler:
    return _Recycler()


def create_user(how: str) -> Scheduler:
    """Reads its input, and then does to it what `how` says."""

    def compute(shared: Shared) -> TextOutput:
        match how:
            case "wait":
                time.sleep(0.4)
            case "read":
                return TextOutput(str(float(shared.tensor.sum() + shared.array.sum()) + sum(shared.numbers)), "stop")
            case "tensor":
                shared.tensor.add_(1)
            case "same value":
                shared.tensor[0] = 0
            case "memory":  # which no version counter sees
                shared.tensor.numpy()[0] = 7
            case "array":
                shared.array[0] = 1
            case "list":
                shared.numbers.append(3)
        return TextOutput("done", "stop")

    return SimpleScheduler(compute)
