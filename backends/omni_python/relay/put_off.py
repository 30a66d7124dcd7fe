"""What a receiving thread puts off until it has handled its message.

Waking another thread is cheap for the one that wakes, but not for the message: the woken thread takes the interpreter
just when the message's answer is made.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any


class _Thread(threading.local):
    put_off: list[tuple[Callable[[Any], object], Any]] | None = None


_this = _Thread()


def begin() -> None:
    """This thread is about to handle a message."""
    _this.put_off = []


def finish() -> None:
    """It has handled it: make the calls that were put off."""
    calls, _this.put_off = _this.put_off, None
    for call, argument in calls or ():
        call(argument)


def call_later(call: Callable[[Any], object], argument: object) -> None:
    """`call(argument)`: at once, or, while this thread handles a message, afterwards."""
    calls = _this.put_off
    if calls is None:
        call(argument)
    else:
        calls.append((call, argument))
