"""What this process holds: file descriptors, and whether what a test does over and over keeps some; our threads."""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from tests.waiting import wait_until


def open_descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def our_threads() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name.startswith("omni-")}


@contextmanager
def none_kept_by_each_of(rounds: int) -> Iterator[None]:
    """Fails where the body, which does `rounds` times the same, ends with a descriptor more for each time.

    A few more or less are other tests' doing: their libraries' threads go on in this process. ZMQ closes a socket's
    descriptors on a thread of its own, after `close` has returned: they are waited for.
    """
    gc.collect()  # what other tests have left would be closed meanwhile
    before = open_descriptors()
    yield
    gc.collect()
    try:
        wait_until(lambda: open_descriptors() - before < rounds / 2)
    except AssertionError:
        raise AssertionError(f"{open_descriptors() - before} more after {rounds} times") from None
