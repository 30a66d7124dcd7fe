"""Credits on their way to the senders of slots that this process is done with."""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections import defaultdict
from collections.abc import Callable

from omni_python.relay.put_off import CREDIT, put_off

Credit = tuple[int, str, int]
"""`(sender's epoch, relay, generation)`."""

SendFn = Callable[[int, str, list[int], bool], bool]
"""`(sender's epoch, relay, generations, whether to wait)`: whether they are on their way, or never will be."""

RETRY = 0.5
"""Seconds until what could not be sent is tried again: with a credit its slot would be lost, until this process ends.
"""

log = logging.getLogger(__name__)


class Credits:
    """Credits come from wherever the last view of a slot dies, even inside the garbage collector: there they are only
    noted. What the receiving thread notes while it handles a message, it sends itself afterwards (`relay.put_off`). All
    others are sent from a thread of their own, those for one peer that have come meanwhile in one message."""

    def __init__(self, send: SendFn) -> None:
        self._send = send
        self._queue: queue.SimpleQueue[Credit | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="omni-credits", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Send what is queued, and end."""
        self._queue.put(None)
        if self._thread.ident is not None:
            self._thread.join()

    def note(self, epoch: int, relay: str, generation: int) -> None:
        """A `CreditFn`."""
        credit = epoch, relay, generation
        if not put_off(self._send_now, credit, CREDIT):
            self._queue.put(credit)

    def _send_now(self, credit: Credit) -> None:
        """Never waits: what cannot be sent at once is left to the other thread."""
        epoch, relay, generation = credit
        if not self._send(epoch, relay, [generation], False):
            self._queue.put(credit)

    def _run(self) -> None:
        ended = False
        while not ended:
            credits = [self._queue.get()]
            while not self._queue.empty():
                credits.append(self._queue.get())
            ended = None in credits
            late = False
            for (epoch, relay), generations in _by_peer(credits).items():
                if not self._try(epoch, relay, generations):
                    late = True
                    for generation in generations:
                        self._queue.put((epoch, relay, generation))
            if late and not ended:
                time.sleep(RETRY)

    def _try(self, epoch: int, relay: str, generations: list[int]) -> bool:
        try:
            return self._send(epoch, relay, generations, True)
        except Exception:  # without this thread all credits would be lost
            log.exception("credits could not be sent")
            return False


def _by_peer(credits: list[Credit | None]) -> dict[tuple[int, str], list[int]]:
    found: dict[tuple[int, str], list[int]] = defaultdict(list)
    for credit in credits:
        if credit is not None:
            epoch, relay, generation = credit
            found[epoch, relay].append(generation)
    return found
