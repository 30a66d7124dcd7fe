"""What the checks of models on a GPU share: they drive stages' schedulers, with no pipeline around them."""

from __future__ import annotations

import queue
from typing import Any

import torch

from omni_python.proto.payload import AudioOutput
from omni_python.proto.work import IncomingMessage, OutgoingMessage
from omni_python.scheduling.base import Scheduler


def started(*schedulers: Scheduler) -> None:
    for scheduler in schedulers:
        scheduler.start()


def stopped(*schedulers: Scheduler) -> None:
    for scheduler in schedulers:
        scheduler.stop()


def taken(scheduler: Scheduler) -> OutgoingMessage:
    """Its next message; raises the error that it sends, and SystemExit where it sends nothing for two minutes."""
    try:
        message = scheduler.outbox.get(timeout=120)
    except queue.Empty:
        raise SystemExit("a stage is silent") from None
    assert message is not None
    if isinstance(message.data, Exception):
        raise message.data
    return message


def voiced(vocoder: Scheduler, frames: Any, result: Any) -> torch.Tensor:
    """The samples [n] of one speech, all of whose `frames` come in one chunk before the `result`."""
    vocoder.inbox.put(IncomingMessage("v", "stream_chunk", frames))
    vocoder.inbox.put(IncomingMessage("v", "new_request", result))
    pieces = []
    while True:
        message = taken(vocoder)
        assert isinstance(message.data, AudioOutput)
        pieces.append(torch.from_numpy(message.data.samples.copy()))
        if message.type == "result":
            return torch.cat(pieces)
