"""Answers that the receiving thread sends itself: to wake another thread for one costs more than to send it."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

HELD_UP = 0.25
"""Seconds after which a call counts as held up, by a client that does not read: another thread then goes on."""

PAUSE = 10.0
"""Seconds without direct calls after one was held up, and as long as one is."""

log = logging.getLogger(__name__)


class DirectCalls:
    """One call at most for each message, made on the receiving thread once it has handled that.

    `replace()` lets another thread receive in its place. The one that was held up must receive nothing more when it
    comes back.
    """

    def __init__(self, replace: Callable[[], None], clock: Callable[[], float] = time.monotonic) -> None:
        self._replace = replace
        self._clock = clock
        self._receiver = 0  # the identity of the receiving thread while it handles a message
        self._call: Callable[[], object] | None = None
        self._since = 0.0  # when the call began that is being made on the receiving thread; 0 where none is
        self._held_up = 0  # calls that are being made on threads that were replaced
        self._paused_until = 0.0
        self._lock = threading.Lock()

    def handling(self, thread: int) -> None:
        """The receiving thread, by its identity, is about to handle a message."""
        self._receiver = thread

    def take(self, call: Callable[[], object]) -> bool:
        """Whether `call` will be made when the message is handled that is being handled on this thread."""
        if self._call is not None or threading.get_ident() != self._receiver:
            return False
        if self._held_up or (self._paused_until and self._clock() < self._paused_until):
            return False
        self._call = call
        return True

    def handled(self) -> None:
        """The receiving thread has handled its message."""
        self._receiver = 0
        if self._call is None:
            return
        call, self._call = self._call, None
        since = self._since = self._clock()
        try:
            call()
        except Exception:
            log.exception("an answer could not be sent")
        with self._lock:
            if self._since == since:
                self._since = 0.0
            else:
                self._held_up -= 1

    def relieve(self, at_once: bool = False) -> None:
        """To be called now and then: let another thread go on where the receiving one is held up, or `at_once` where it
        makes any call."""
        with self._lock:
            now = self._clock()
            if not self._since or (now - self._since < HELD_UP and not at_once):
                return
            self._since = 0.0
            self._held_up += 1
            self._paused_until = now + PAUSE
            log.warning("the receiving thread is held up by a client that does not read; another goes on")
            self._replace()
