"""The threads that send answers: sending can block, and must then hold up nobody else."""

from __future__ import annotations

import logging
import math
import queue
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from omni_python.pipeline.answer_parts import Chunks, ResponseSink
from omni_python.proto.payload import Payload
from omni_python.relay.put_off import call_later

STOP_TIMEOUT = 5.0
"""Seconds to wait for a thread that is still sending when the server stops."""

MAX_THREADS = 24
"""At most, however many clients do not read: Triton's stub sends on 32 threads of its own."""

SENDS_A_TURN = 4
"""For one request, before others that wait have their turn: so many at most, so that threads need not change."""

REST = 0.005
"""Seconds from one response of an answer to the next with more of the same, at least: what comes faster is joined. No
listener or reader notices, and no other answer waits behind a crowd of small responses."""

RELIEF = 0.2
"""Seconds without anything sent, while something waits, after which another thread is added."""

log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Line:
    """What a request has to send. With a turn it waits for a thread or has one; without, it may rest."""

    backlog: deque[Callable[[], None]] = field(default_factory=deque)
    has_turn: bool = False
    is_begun: bool = False
    kind: type[Payload] | None = None  # of the last response, where that was chunks
    rested: float = 0.0  # when more of that kind may be sent

    def take(self) -> Callable[[], None]:
        send = self.backlog.popleft()
        self.kind = send.kind if isinstance(send, Chunks) else None
        self.is_begun = True
        return send

    def rests(self, now: float) -> bool:
        """Whether there is nothing to send but chunks that can wait for others."""
        if not self.backlog:
            return True
        first = self.backlog[0]
        can_wait = len(self.backlog) == 1 and isinstance(first, Chunks) and first.kind is self.kind
        return can_wait and now < self.rested


class _Turns:
    """Each request with a turn, once. Those that have not had any come first: an answer's beginning waits for nothing
    but what threads are sending already. Any number of threads."""

    def __init__(self) -> None:
        self._first: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._later: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._any: queue.SimpleQueue[bool] = queue.SimpleQueue()  # a True for each of both; False ends a thread

    def put(self, request_id: str) -> None:
        self._later.put(request_id)
        self._any.put(True)

    def put_first(self, request_id: str) -> None:
        self._first.put(request_id)
        self._any.put(True)

    def end_one(self) -> None:
        """Let a thread get None once there are no turns."""
        self._any.put(False)

    def get(self) -> str | None:
        if not self._any.get():
            return None
        try:
            return self._first.get_nowait()
        except queue.Empty:
            return self._later.get_nowait()

    def empty(self) -> bool:
        return self._any.empty()


class AnswerThreads:
    """In order within a request, in turns between requests; a request has one thread at most at a time. Chunks that
    come faster than they are sent, or than `REST` allows, are joined: with the load a response's size grows, and not
    their number.

    `relieve`, called now and then, sends what has rested and adds a thread where all are held up.
    """

    def __init__(self, count: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._count = count
        self._clock = clock
        self._turns = _Turns()
        self._lines: dict[str, _Line] = {}
        self._lock = threading.Lock()
        self._threads: list[threading.Thread] = []
        self._is_stopping = False
        self._sent = 0
        self._seen = (0, 0.0)  # how many were sent, and when that was first seen

    def start(self) -> None:
        for _ in range(self._count):
            self._add_thread()

    def stop(self) -> None:
        """Send what is queued, then end. From now on a thread sends a line whole, without a rest and without turns for
        others: what it would put back would stand behind the threads' ends."""
        with self._lock:
            self._is_stopping = True
        self._look_at_lines(math.inf)
        for _ in self._threads:
            self._turns.end_one()
        for thread in self._threads:
            thread.join(STOP_TIMEOUT)

    def put(self, request_id: str, send: Callable[[], None]) -> None:
        with self._lock:
            line = self._line(request_id)
            line.backlog.append(send)
            self._give_turn(request_id, line)

    def put_chunk(self, request_id: str, sink: ResponseSink, payload: Payload) -> None:
        with self._lock:
            line = self._line(request_id)
            last = line.backlog[-1] if line.backlog else None
            if not (isinstance(last, Chunks) and last.take(payload)):
                line.backlog.append(Chunks(sink, payload))
            if not line.rests(self._clock()):
                self._give_turn(request_id, line)

    def _line(self, request_id: str) -> _Line:
        line = self._lines.get(request_id)
        if line is None:
            line = self._lines[request_id] = _Line()
        return line

    def _give_turn(self, request_id: str, line: _Line) -> None:
        if not line.has_turn:
            line.has_turn = True
            call_later(self._turns.put if line.is_begun else self._turns.put_first, request_id)

    def relieve(self) -> None:
        now = self._clock()
        self._look_at_lines(now)
        if self._sent != self._seen[0] or self._turns.empty():
            self._seen = (self._sent, now)
        elif now - self._seen[1] > RELIEF and len(self._threads) < MAX_THREADS:
            self._seen = (self._sent, now)
            log.warning("all %d sending threads are held up by clients that do not read; one more", len(self._threads))
            self._add_thread()

    def _look_at_lines(self, now: float) -> None:
        """Send what rests although nothing more has come, and forget those that have no reason to rest."""
        with self._lock:
            for request_id, line in list(self._lines.items()):
                if line.backlog and not line.rests(now):
                    self._give_turn(request_id, line)
                elif not line.has_turn and now >= line.rested:
                    del self._lines[request_id]

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
        line = self._lines[request_id]
        with self._lock:
            send = line.take()
        sent = 0
        while True:
            line.rested = self._clock() + REST
            try:
                send()
            except Exception:
                log.exception("a response could not be sent")
            sent += 1
            with self._lock:
                self._sent += 1
                if line.rests(math.inf if self._is_stopping else self._clock()):
                    line.has_turn = False
                    return True
                if sent >= SENDS_A_TURN and not self._is_stopping and not self._turns.empty():
                    self._turns.put(request_id)
                    return True
                send = line.take()
