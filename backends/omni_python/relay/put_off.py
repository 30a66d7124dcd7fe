"""What a receiving thread puts off until it has handled its message.

Waking another thread is cheap for the one that wakes, but not for the message: the woken thread takes the interpreter
just when the message's answer is made.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

_put_off: dict[int, list[tuple[Callable[[Any], object], Any]]] = {}
"""By thread, of those that handle a message. Several times cheaper than a `threading.local`."""


def begin(thread: int) -> None:
    """This thread, by its identity, is about to handle a message."""
    _put_off[thread] = []


def finish(thread: int) -> None:
    """It has handled it: make the calls that were put off."""
    for call, argument in _put_off.pop(thread):
        call(argument)


def call_later(call: Callable[[Any], object], argument: object) -> None:
    """`call(argument)`: at once, or, while this thread handles a message, afterwards."""
    calls = _put_off.get(threading.get_ident())
    if calls is None:
        call(argument)
    else:
        calls.append((call, argument))
