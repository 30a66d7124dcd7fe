"""The contract between a stage and whatever computes inside it."""

from __future__ import annotations

import abc
import logging
import os
import signal
from collections.abc import Callable, Mapping

from omni_python.proto.work import IncomingMessage, OutgoingMessage
from omni_python.scheduling.fair_queue import FairQueue

log = logging.getLogger(__name__)


def end_process(reason: str) -> None:
    """Leave nothing half alive: what waits for this process notices its death."""
    log.critical("this process ends: %s", reason)
    os.kill(os.getpid(), signal.SIGKILL)


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
        self.on_broken: Callable[[str], None] = end_process
        """Called on any thread, at most once, with the reason why this scheduler can never go on; must end the process.
        """

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
