"""The contract between a stage and whatever computes inside it."""

from __future__ import annotations

import abc
import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from omni_python.proto.errors import OmniError
from omni_python.proto.histogram import Histogram
from omni_python.proto.work import IncomingMessage, OutgoingMessage
from omni_python.scheduling.fair_queue import FairQueue
from omni_python.scheduling.lost_device import lost_device
from omni_python.scheduling.work_trace import WorkTrace

BATCH_SIZES = (1, 2, 4, 8, 16, 32, 64, 128)

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class KVUse:
    """Tokens: that requests hold, and that there is room for; and of all prompts so far those that were looked up in
    the cache of prefixes, and found."""

    used: int
    capacity: int
    queries: int = 0
    hits: int = 0


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

    Of requests that are in `traces` a scheduler tells when it computed them, before it puts out what came of it.
    """

    sends_itself: ClassVar[bool] = False
    """Whether the thread that puts into `outbox` may be held up until that is sent: its stage then needs no thread for
    it, and none has to be woken."""

    def __init__(self) -> None:
        self.inbox: FairQueue[IncomingMessage] = FairQueue()
        self.outbox: FairQueue[OutgoingMessage] = FairQueue()
        self.traces: dict[str, WorkTrace] = {}
        """By request id, those that the stage has open and that are traced; kept by the stage's process."""
        self.on_broken: Callable[[str], None] = end_process
        """Called on any thread, at most once, with the reason why this scheduler can never go on; must end the process.
        Use `give_up`.
        """
        self._giving_up = threading.Lock()
        self.on_began: Callable[[str], None] = lambda request_id: None
        """Called on any thread when the scheduler begins with a request; the first time counts."""
        self.batch_sizes = Histogram(BATCH_SIZES)
        """Of what was computed at once."""

    @abc.abstractmethod
    def start(self) -> None:
        """Start the scheduler's thread(s) and return."""

    @abc.abstractmethod
    def stop(self) -> None:
        """Stop the thread(s) and wait for them; requests still there are dropped."""

    @abc.abstractmethod
    def abort(self, request_id: str) -> None:
        """Drop a request, known or not: its messages in `inbox` and all state. Any thread; returns at once."""

    def give_up(self, reason: str) -> None:
        """This scheduler can never go on; `reason` continues "the process ...". Any thread, any number of times."""
        if self._giving_up.acquire(blocking=False):  # and never given back
            self.on_broken(reason)

    def run_to_end(self, run: Callable[[], object]) -> None:
        """The whole of a thread that the scheduler cannot go on without: nobody would notice its death."""
        try:
            run()
        except BaseException as error:
            log.exception("a scheduler's thread failed")
            self.give_up(f"ended: its scheduler failed ({type(error).__name__}: {error})")

    def note_failure(self, error: Exception) -> None:
        """A computation failed; gives up where no later one can succeed. An `OmniError` is no sign of that."""
        if not isinstance(error, OmniError) and (lost := lost_device()) is not None:
            self.give_up(f"ended: it lost {lost}")

    def note_step(self, request_ids: Collection[str], start: float) -> None:
        """A step that computed these requests, and began at `start` of `time.monotonic()`, is over. To be called only
        where there are `traces`."""
        end = time.monotonic()
        for request_id in request_ids:
            if (trace := self.traces.get(request_id)) is not None:
                trace.computed(start, end, len(request_ids))

    def stats(self) -> Mapping[str, int]:
        """What is held now, by name; every value is 0 when no request is left (a test counts on it)."""
        return {}

    def profile_others(self, path: Path, seconds: float) -> None:  # noqa: B027, most compute alone
        """This process is profiled for `seconds`, into the file `path`: other processes that compute for it write a
        trace beside that. Any thread."""

    def kv_use(self) -> KVUse | None:
        """Of a scheduler with a KV cache. Any thread."""
        return None
