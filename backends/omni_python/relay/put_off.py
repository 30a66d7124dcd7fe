"""What a receiving thread puts off until it has handled its message.

The receiving thread handles each message in `handle`. What is put off meanwhile on this thread is made afterwards: in
the order of the turns below, and within a turn in the order in which it came. Which function to use:

- `call_later`, to wake another thread. Waking is cheap for the one that wakes, but not for the message: the woken
  thread takes the interpreter just when the message's answer is made. On a thread that handles no message the call is
  made at once.
- `put_off`, for what else would be left to another thread, which would have to be woken for it. It says whether this
  thread will do it. There are two such things: credits (`pipeline.credits`), and an answer that is sent in one part
  (`pipeline.direct`, which also sees to it that another thread receives when a client holds this one up).
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
