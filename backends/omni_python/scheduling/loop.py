"""A scheduler with one thread: takes every message, computes a step, and again."""

from __future__ import annotations

import abc
import queue
import threading
from dataclasses import dataclass

from omni_python.proto.work import IncomingMessage, OutgoingMessage
from omni_python.scheduling.base import Scheduler


@dataclass(slots=True)
class _Abort(IncomingMessage):
    """An abort goes through the inbox: it takes what was put there before it, and nothing after."""


class LoopScheduler(Scheduler):
    """`take`, `drop` and `work` are called from the scheduler's thread alone; an exception of `drop` or `work` ends it,
    and with it the process."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self._stopping = False
        name = f"{name}-scheduler"
        self._thread = threading.Thread(target=self.run_to_end, args=(self._run,), name=name, daemon=True)

    @abc.abstractmethod
    def take(self, message: IncomingMessage) -> None:
        """Take one message; an exception ends its request with that error."""

    @abc.abstractmethod
    def drop(self, request_id: str) -> None:
        """Free what the request holds; it may be unknown."""

    def work(self) -> bool:
        """Compute a step. Whether there was anything to do; if not, the thread sleeps until the next message."""
        return False

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopping = True
        self.inbox.put(None)
        if self._thread.ident is not None:
            self._thread.join()

    def abort(self, request_id: str) -> None:
        self.inbox.discard(request_id)
        self.inbox.put(_Abort(request_id, "stream_done"))

    def fail(self, request_id: str, error: Exception) -> None:
        self.note_failure(error)
        self.drop(request_id)
        self.outbox.put(OutgoingMessage(request_id, "error", error))

    def _run(self) -> None:
        idle = True
        while self._receive(block=idle):
            idle = not self.work()

    def _receive(self, block: bool) -> bool:
        """Take every message; with `block`, wait for the first. False where the scheduler is to stop."""
        try:
            message = self.inbox.get(block=block)
            while True:
                if isinstance(message, _Abort):
                    self.drop(message.request_id)
                elif message is not None:
                    if self.traces:
                        self._take_traced(message)
                    else:
                        self._take_safely(message)
                message = self.inbox.get_nowait()
        except queue.Empty:
            return not self._stopping

    def _take_traced(self, message: IncomingMessage) -> None:
        trace = self.traces.get(message.request_id)
        if trace is not None:
            trace.begin()
        self._take_safely(message)
        if trace is not None:
            trace.end()

    def _take_safely(self, message: IncomingMessage) -> None:
        try:
            self.take(message)
        except Exception as error:
            self.fail(message.request_id, error)
