"""Answers that the receiving thread sends itself: to wake another thread for one costs more than to send it."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from omni_python.relay.put_off import ANSWER, put_off

HELD_UP = 0.25
"""Seconds after which a call counts as held up, by a client that does not read: another thread then goes on."""

PAUSE = 10.0
"""Seconds without direct calls after one was held up, and as long as one is."""

log = logging.getLogger(__name__)


class DirectCalls:
    """One call at most for each message, made on the receiving thread once it has handled that and made all else that
    was put off meanwhile (`relay.put_off`, which is enough for what no client can hold up).

    `replace()` lets another thread receive in its place. The one that was held up must receive nothing more when it
    comes back.
    """

    def __init__(self, replace: Callable[[], None], clock: Callable[[], float] = time.monotonic) -> None:
        self._replace = replace
        self._clock = clock
        self._is_taken = False  # whether a call waits for the receiving thread
        self._since = 0.0  # when the call began that is being made on the receiving thread; 0 where none is
        self._held_up = 0  # calls that are being made on threads that were replaced
        self._paused_until = 0.0
        self._is_closed = False
        self._lock = threading.Lock()

    def take(self, call: Callable[[], object]) -> bool:
        """Whether `call` will be made when the message is handled that is being handled on this thread."""
        if self._is_taken or self._held_up or self._is_closed:
            return False
        if (self._paused_until and self._clock() < self._paused_until) or not put_off(self._make, call, ANSWER):
            return False
        self._is_taken = True
        return True

    def _make(self, call: Callable[[], object]) -> None:
        """The receiving thread has handled its message."""
        self._is_taken = False
        since = self._since = self._clock()
        if self._is_closed:  # asked after `_since` was set, which `close` looks at after it has set this
            self._since = 0.0
            threading.Thread(target=call, name="omni-send", daemon=True).start()
            return
        try:
            call()
        except Exception:
            log.exception("an answer could not be sent")
        with self._lock:
            if self._since == since:
                self._since = 0.0
            else:
                self._held_up -= 1

    def relieve(self) -> None:
        """To be called now and then: let another thread go on where the receiving one is held up."""
        with self._lock:
            now = self._clock()
            if self._since and now - self._since >= HELD_UP:
                self._paused_until = now + PAUSE
                log.warning("the receiving thread is held up by a client that does not read; another goes on")
                self._let_another_go_on()

    def close(self) -> None:
        """Make no more calls on the receiving thread, which is about to be waited for; where one is being made, another
        thread goes on."""
        with self._lock:
            self._is_closed = True
            if self._since:
                self._let_another_go_on()

    def _let_another_go_on(self) -> None:
        self._replace()  # first: where that fails, the next look tries again
        self._since = 0.0
        self._held_up += 1
