"""The threads that send answers: sending can block, and must then hold up nobody else."""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol

from omni_python.proto.errors import OmniError
from omni_python.proto.payload import Payload
from omni_python.proto.timing import StageTiming
from omni_python.proto.trace import Trace

STOP_TIMEOUT = 5.0
"""Seconds to wait for a thread that is still sending when the server stops."""

MAX_THREADS = 24
"""At most, however many clients do not read: Triton's stub sends on 32 threads of its own."""

SENDS_A_TURN = 4
"""For one request, before others that wait have their turn: so many at most, so that threads need not change."""

RELIEF = 0.2
"""Seconds without anything sent, while something waits, after which another thread is added."""

log = logging.getLogger(__name__)


class ResponseSink(Protocol):
    """Where a request's answer goes: chunks and terminal stages' results as they come, then once `fail`, or `finish`
    with when its stages worked, relative to the admission, and with its trace where the request asked for it.

    All but `is_cancelled` are called on one thread at a time, in order.
    """

    def chunk(self, payload: Payload) -> None: ...
    def result(self, stage: str, payload: Payload) -> None: ...
    def finish(self, timings: Sequence[StageTiming], trace: Trace | None = None) -> None: ...
    def fail(self, error: OmniError) -> None: ...
    def is_cancelled(self) -> bool: ...


class AnswerThreads:
    """In order within a request, in turns between requests; a request has one thread at most at a time.

    `relieve`, called now and then, adds a thread where all are held up.
    """

    def __init__(self, count: int) -> None:
        self._count = count
        self._turns: queue.SimpleQueue[str | None] = queue.SimpleQueue()  # each request with something to send, once
        self._backlogs: dict[str, deque[Callable[[], None]]] = {}
        self._lock = threading.Lock()
        self._threads: list[threading.Thread] = []
        self._sent = 0
        self._seen = (0, 0.0)  # how many were sent, and when that was first seen

    def start(self) -> None:
        for _ in range(self._count):
            self._add_thread()

    def stop(self) -> None:
        """Send what is queued, then end."""
        for _ in self._threads:
            self._turns.put(None)
        for thread in self._threads:
            thread.join(STOP_TIMEOUT)

    def put(self, request_id: str, send: Callable[[], None]) -> None:
        with self._lock:
            backlog = self._backlogs.get(request_id)
            if backlog is None:
                self._backlogs[request_id] = deque((send,))
                self._turns.put(request_id)
            else:
                backlog.append(send)

    def relieve(self) -> None:
        now = time.monotonic()
        if self._sent != self._seen[0] or self._turns.empty():
            self._seen = (self._sent, now)
        elif now - self._seen[1] > RELIEF and len(self._threads) < MAX_THREADS:
            self._seen = (self._sent, now)
            log.warning("all %d sending threads are held up by clients that do not read; one more", len(self._threads))
            self._add_thread()

    def _add_thread(self) -> None:
        thread = threading.Thread(target=self._run, name="omni-send", daemon=True)
        self._threads.append(thread)
        thread.start()

    def _run(self) -> None:
        while self._send_next():
            pass

    def _send_next(self) -> bool:
        """A call of its own, so that no payload (and no relay slot) is held while waiting for the next."""
        request_id = self._turns.get()
        if request_id is None:
            return False
        with self._lock:
            backlog = self._backlogs[request_id]
            send = backlog.popleft()
        sent = 0
        while True:
            try:
                send()
            except Exception:
                log.exception("a response could not be sent")
            sent += 1
            with self._lock:
                self._sent += 1
                if not backlog:
                    del self._backlogs[request_id]
                    return True
                if sent >= SENDS_A_TURN and not self._turns.empty():
                    self._turns.put(request_id)
                    return True
                send = backlog.popleft()
