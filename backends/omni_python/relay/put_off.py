"""What a receiving thread puts off until it has handled its message.

Every thread that handles messages does so in `handle`. What others then want of it, on the same thread, waits for the
end of that, and is made in the order of the turns below, within a turn in the order in which it came:

- To wake another thread, use `call_later`. Waking is cheap for the one that wakes, but not for the message: the woken
  thread takes the interpreter just when the message's answer is made. Where no message is being handled, the call is
  made at once.
- What is worth doing on this thread only because it is about to be free, and has another way else, asks `put_off`
  whether it can: credits, which then wake no thread of their own (`pipeline.credits`), and an answer's only part, which
  then wakes no sending thread (`pipeline.direct`).
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from operator import itemgetter
from typing import Any, TypeVar

M = TypeVar("M")

WAKING = 0
"""Threads that have work now go first."""

CREDIT = 1
"""What other processes wait for, less urgently."""

ANSWER = 2
"""What may be held up by a client comes last: nothing must wait behind it."""

_put_off: dict[int, list[tuple[int, Callable[[Any], object], Any]]] = {}
"""By thread, of those that handle a message. Several times cheaper than a `threading.local`."""

_turn = itemgetter(0)

log = logging.getLogger(__name__)


def handle(handler: Callable[[M], object], message: M) -> None:
    """`handler(message)`, then what this thread has put off meanwhile, even where the handler raises."""
    thread = threading.get_ident()
    calls = _put_off[thread] = []
    try:
        handler(message)
    finally:
        del _put_off[thread]
        if calls:
            if len(calls) > 1:
                calls.sort(key=_turn)
            for _, call, argument in calls:
                try:
                    call(argument)
                except Exception:  # the others are not to be lost with it
                    log.exception("what a receiving thread had put off failed")


def put_off(call: Callable[[Any], object], argument: object, turn: int) -> bool:
    """Whether `call(argument)` will be made when this thread has handled its message; False where it handles none."""
    calls = _put_off.get(threading.get_ident())
    if calls is None:
        return False
    calls.append((turn, call, argument))
    return True


def call_later(call: Callable[[Any], object], argument: object) -> None:
    """`call(argument)`: at once, or, while this thread handles a message, afterwards."""
    calls = _put_off.get(threading.get_ident())
    if calls is None:
        call(argument)
    else:
        calls.append((WAKING, call, argument))
