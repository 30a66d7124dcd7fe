"""What bounds the decoding of all files of one request together: their time, and that the request is still wanted.

Kept by thread, not handed on: everything that reads a file asks, however deep below the one who knows of the request.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

from omni_python.proto.errors import Cancelled, InvalidArgument


@dataclass(frozen=True)
class _Limit:
    seconds: float
    end: float
    is_cancelled: Callable[[], bool]


_current: ContextVar[_Limit | None] = ContextVar("omni_request_limit", default=None)


@contextmanager
def request_limit(seconds: float, is_cancelled: Callable[[], bool]) -> Iterator[None]:
    """What this thread decodes meanwhile is for one request."""
    limit = _Limit(seconds, time.monotonic() + seconds, is_cancelled)
    before = _current.set(limit)
    try:
        yield
    finally:
        _current.reset(before)


def check_request() -> None:
    """Raise `Cancelled` where the request that this thread decodes for is over, `InvalidArgument` where its time is."""
    limit = _current.get()
    if limit is None:
        return
    if limit.is_cancelled():
        raise Cancelled("the request was cancelled")
    if time.monotonic() > limit.end:
        raise InvalidArgument(
            f"decoding the request's files took longer than {limit.seconds:g} s together, the most that is accepted; "
            "send fewer or smaller ones"
        )
