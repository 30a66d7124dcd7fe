"""The threads that send answers: sending can block, and must then hold up nobody else."""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable
from typing import Protocol

from omni_python.proto.errors import OmniError
from omni_python.proto.payload import Payload

STOP_TIMEOUT = 5.0
"""Seconds to wait for a thread that is still sending when the server stops."""

log = logging.getLogger(__name__)


class ResponseSink(Protocol):
    """Where a request's answer goes: chunks and terminal stages' results as they come, then once `finish` or `fail`.

    All but `is_cancelled` are called on one thread, in order.
    """

    def chunk(self, payload: Payload) -> None: ...
    def result(self, stage: str, payload: Payload) -> None: ...
    def finish(self) -> None: ...
    def fail(self, error: OmniError) -> None: ...
    def is_cancelled(self) -> bool: ...


class AnswerThreads:
    """A request stays with one thread, which keeps its order."""

    def __init__(self, count: int) -> None:
        self._queues: list[queue.SimpleQueue[Callable[[], None] | None]] = [queue.SimpleQueue() for _ in range(count)]
        self._threads = [
            threading.Thread(target=self._run, args=(answers,), name="omni-send", daemon=True)
            for answers in self._queues
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Send what is queued, then end."""
        for answers in self._queues:
            answers.put(None)
        for thread in self._threads:
            thread.join(STOP_TIMEOUT)

    def put(self, request_id: str, send: Callable[[], None]) -> None:
        self._queues[hash(request_id) % len(self._queues)].put(send)

    def _run(self, answers: queue.SimpleQueue[Callable[[], None] | None]) -> None:
        while self._send_next(answers):
            pass

    @staticmethod
    def _send_next(answers: queue.SimpleQueue[Callable[[], None] | None]) -> bool:
        """A call of its own, so that no payload (and no relay slot) is held while waiting for the next."""
        send = answers.get()
        if send is None:
            return False
        try:
            send()
        except Exception:
            log.exception("a response could not be sent")
        return True
