"""Wait for what comes about by itself, on another thread or in another process."""

from __future__ import annotations

import time
from collections.abc import Callable

import psutil

from omni_python.serve.given_up import GivenUpStubs


def wait_until(holds: Callable[[], object], timeout: float = 10.0, period: float = 0.01) -> None:
    """Until `holds()` is true, looked at each `period` seconds. Fails after `timeout` seconds."""
    end = time.monotonic() + timeout
    while True:
        last = time.monotonic() >= end  # before the look: this thread may be held up after it
        if holds():
            return
        assert not last, f"not so after {timeout:g} s"
        time.sleep(period)


def wait_given_up(stub: psutil.Process) -> None:
    """Until Triton, which looks for life once a second, waits for the end of a suspended stub that was starting."""
    server = GivenUpStubs(stub.ppid())
    wait_until(lambda: stub.pid in [pid for _, pid in server._threads.told()], 30, 0.1)
