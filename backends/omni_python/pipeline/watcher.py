"""What a coordinator has to look at now and then, since nobody tells it."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path

from omni_python.control.liveness import PERIOD, LifeSign, write_life_sign
from omni_python.control.safely import safely
from omni_python.pipeline.members import Members
from omni_python.pipeline.requests import Request, Requests, RequestState
from omni_python.proto.errors import Cancelled, DeadlineExceeded, OmniError

CANCEL_POLL = 0.02
"""Seconds between looks at whether clients are still there."""

LOOKS = 10
"""Clients that are looked at each time, in turns. A look takes 50 us of CPU: all together 2.5 % of a core at most."""

DOZE = 1.0
"""Seconds without a request after which the watcher sleeps until one comes. To wake it costs as much as many looks."""

REPORT_TIME = 0.1
"""Seconds past a deadline in which a stage may tell that it has dropped the request, before the coordinator ends it."""

log = logging.getLogger(__name__)


class Watcher:
    """Clients that leave, deadlines, heartbeats, and threads that are held up; and the sign that the orchestrator of
    pipeline `name` itself lives, in `directory`.

    `end(request, state, error)` is called for requests that are to end, and `relieve()` each time.
    """

    def __init__(
        self,
        name: str,
        directory: Path,
        pid: int,
        requests: Requests,
        members: Members,
        end: Callable[[Request, RequestState, OmniError], None],
        relieve: Callable[[], None],
    ) -> None:
        self._name = name
        self._directory = directory
        self._pid = pid
        self._requests = requests
        self._members = members
        self._end = end
        self._relieve = relieve
        self._next_sign = 0.0
        self._to_look_at: deque[Request] = deque()
        self._thread = threading.Thread(target=self._run, name="omni-watch", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def join(self) -> None:
        """Wait for its end, which is that of `members`."""
        self._thread.join()

    def _run(self) -> None:
        next_check = last_busy = 0.0
        while not self._members.closed:
            dozes = self._requests.doze(time.monotonic() - last_busy > DOZE)
            timeout = 1.0 if dozes else max(0.0, next_check - time.monotonic())
            self._safely(self._members.wait, timeout)
            if (now := time.monotonic()) >= next_check:
                next_check = now + CANCEL_POLL
                if len(self._requests):
                    last_busy = now
                self._safely(self._check_clients)
                self._safely(self._check_deadlines)
                self._safely(self._members.check_heartbeats)
                self._safely(self._show_life)
                self._safely(self._relieve)

    def _safely(self, look: Callable[..., object], *arguments: object) -> None:
        """Neither the other looks nor this thread end with one that fails: nobody else would keep deadlines."""
        safely("what the coordinator looks at now and then", look, *arguments)

    def _check_clients(self) -> None:
        if not self._to_look_at:  # many are served before their first look
            old = time.monotonic() - CANCEL_POLL
            self._to_look_at.extend(request for request in self._requests if request.admitted <= old)
        for _ in range(min(LOOKS, len(self._to_look_at))):
            request = self._to_look_at.popleft()
            if self._requests.get(request.id) is not None and request.sink.is_cancelled():
                self._end(request, RequestState.ABORTED, Cancelled("the client cancelled the request"))

    def _check_deadlines(self) -> None:
        now = time.monotonic()
        for request in self._requests:
            if now > request.deadline and request.state is RequestState.PENDING:
                error = DeadlineExceeded("deadline exceeded before a stage took the request")
                self._end(request, RequestState.FAILED, error)
            elif now > request.deadline + REPORT_TIME:
                waiting = ", ".join(sorted(request.left))
                error = DeadlineExceeded(f"deadline exceeded while waiting for stage {waiting}")
                self._end(request, RequestState.FAILED, error)

    def _show_life(self) -> None:
        now = time.monotonic()
        if now < self._next_sign and not self._requests.closed:
            return
        self._next_sign = now + PERIOD
        try:
            requests, complete = self._requests, self._members.is_complete()
            write_life_sign(self._directory, self._name, LifeSign(self._pid, len(requests), requests.closed, complete))
        except OSError as error:
            log.warning("no sign of life could be left: %s", error)
