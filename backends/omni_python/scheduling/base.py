"""The contract between a stage and whatever computes inside it."""

from __future__ import annotations

import abc
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from omni_python.scheduling.fair_queue import FairQueue


@dataclass(slots=True)
class IncomingMessage:
    """Work for a scheduler.

    new_request: `data` is the stage's input payload (after fan-in).
    stream_chunk: `data` is one payload of a streaming edge, in order. Chunks may come before the request itself.
    stream_done: the streaming edge is finished; `data` is None.
    """

    request_id: str
    type: Literal["new_request", "stream_chunk", "stream_done"]
    data: Any = None


@dataclass(slots=True)
class OutgoingMessage:
    """What a scheduler has made.

    result: `data` is the stage's output payload; the request is then over for this scheduler.
    stream: `data` is one chunk. `target` names a stage of `stream_to`; None means the coordinator
        (terminal stages only).
    error: `data` is the exception; the request is then over for the whole pipeline.
    """

    request_id: str
    type: Literal["result", "stream", "error"]
    data: Any = None
    target: str | None = None
    metadata: dict[str, Any] | None = None


class Scheduler(abc.ABC):
    """Computes requests taken from `inbox` and puts what it makes into `outbox`.

    A None in the inbox only wakes the scheduler's thread.

    `inbox` is written by the stage's receiving thread and read by the scheduler's own thread; `outbox` the
    other way round. After `abort(request_id)` nothing of that request is computed from the next step on and its
    state is freed; messages of it that are already in `outbox` are dropped by the stage.
    """

    def __init__(self) -> None:
        self.inbox: FairQueue[IncomingMessage] = FairQueue()
        self.outbox: FairQueue[OutgoingMessage] = FairQueue()

    @abc.abstractmethod
    def start(self) -> None:
        """Start the scheduler's thread(s) and return."""

    @abc.abstractmethod
    def stop(self) -> None:
        """Stop the thread(s) and wait for them; requests still there are dropped."""

    @abc.abstractmethod
    def abort(self, request_id: str) -> None:
        """Drop a request, known or not: its messages in `inbox` and all state. Any thread; returns at once."""

    def stats(self) -> Mapping[str, int]:
        """What is held now, by name; every value is 0 when no request is left (a test counts on it)."""
        return {}
