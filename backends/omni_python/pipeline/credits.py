"""Credits on their way to the senders of slots that this process is done with."""

from __future__ import annotations

import queue
import threading
from collections import defaultdict
from collections.abc import Callable

SendFn = Callable[[int, str, list[int], bool], bool]
"""`(sender's epoch, relay, generations, whether to wait)`: whether they are on their way, or never will be."""


class Credits:
    """Credits come from wherever the last view of a slot dies, even inside the garbage collector: there they are only
    noted. What the receiving thread notes while it handles a message, it sends itself afterwards, which spares waking
    another thread just when the message's answer is made. All others are sent from a thread of their own. Either way
    all that are waiting for one peer go in one message."""

    def __init__(self, send: SendFn) -> None:
        self._send = send
        self._receiver = 0
        """The identity of the receiving thread while it handles a message."""
        self._held: list[tuple[int, str, int]] = []
        self._queue: queue.SimpleQueue[tuple[int, str, int] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="omni-credits", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Send what is queued, and end."""
        self._queue.put(None)
        self._thread.join()

    def note(self, epoch: int, relay: str, generation: int) -> None:
        """A `CreditFn`."""
        if threading.get_ident() == self._receiver:
            self._held.append((epoch, relay, generation))
        else:
            self._queue.put((epoch, relay, generation))

    def hold(self, thread: int) -> None:
        """The receiving thread, by its identity, is about to handle a message."""
        self._receiver = thread

    def settle(self) -> None:
        """The receiving thread has handled its message. Never blocks: what cannot be sent at once is left to the other
        thread."""
        self._receiver = 0  # first, so that nothing is held that is noted from here on
        if self._held:
            held, self._held = self._held, []
            for (epoch, relay), generations in _by_peer(held).items():
                if not self._send(epoch, relay, generations, False):
                    for generation in generations:
                        self._queue.put((epoch, relay, generation))

    def _run(self) -> None:
        ended = False
        while not ended:
            credits = [self._queue.get()]
            while not self._queue.empty():
                credits.append(self._queue.get())
            ended = None in credits
            for (epoch, relay), generations in _by_peer([credit for credit in credits if credit is not None]).items():
                self._send(epoch, relay, generations, True)


def _by_peer(credits: list[tuple[int, str, int]]) -> dict[tuple[int, str], list[int]]:
    found: dict[tuple[int, str], list[int]] = defaultdict(list)
    for epoch, relay, generation in credits:
        found[epoch, relay].append(generation)
    return found
