"""A process that does not outlive the one that started it."""

from __future__ import annotations

import os
import select
import signal
import threading

GRACE = 5
"""Seconds for this process to notice by itself that its parent is gone, and to end as it likes."""


def end_with_parent() -> None:
    """Let this process be killed `GRACE` seconds after its parent's death.

    Triton's stub looks for its server now and then, but not while it waits for a lock in shared memory: where a killed
    server (24.10 seen) had that lock, the stub waits for ever, and keeps the interpreter to itself. The kernel's own
    way, PR_SET_PDEATHSIG, is for the death of the thread that started the process, and a server's loading threads do
    not stay.
    """
    parent = os.pidfd_open(os.getppid())
    threading.Thread(target=_end_with, args=(parent,), name="omni-parent", daemon=True).start()


def _end_with(parent: int) -> None:
    poll = select.poll()
    poll.register(parent, select.POLLIN)
    poll.poll()
    signal.alarm(GRACE)  # which needs the interpreter no more, where the lock is waited for with it
