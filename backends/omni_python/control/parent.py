"""The server that started this process, its stub, and which this process does not outlive."""

from __future__ import annotations

import os
import select
import signal
import threading

from omni_python.control.stub_command import StubCommand
from omni_python.proto.errors import OmniError

GRACE = 5
"""Seconds for this process to notice by itself that its server is gone, and to end as it likes."""


def server_pid() -> int:
    """The id of the tritonserver that started this process.

    Raises `OmniError` where that is gone: the parent of this process is then whoever takes in orphans.
    """
    server = _server_of_command()
    if server != os.getppid():
        raise OmniError(f"the server that started this process, {server}, is gone")
    return server


def end_with_server() -> None:
    """Let this process be killed `GRACE` seconds after its server's death, be that in the past.

    Triton's stub looks for its server now and then, but not while it waits for a lock in shared memory: where a killed
    server (24.10 seen) had that lock, the stub waits for ever, and keeps the interpreter to itself. The kernel's own
    way, PR_SET_PDEATHSIG, is for the death of the thread that started the process, and a server's loading threads do
    not stay.
    """
    parent = os.pidfd_open(os.getppid())
    if _server_of_command() != os.getppid():
        signal.alarm(GRACE)
    server_pid()  # after: it was the server that was opened
    threading.Thread(target=_end_with, args=(parent,), name="omni-parent", daemon=True).start()


def _server_of_command() -> int:
    command = StubCommand.of(os.getpid())
    if command is None:
        raise OmniError("no tritonserver started this process")
    return command.server_pid


def _end_with(parent: int) -> None:
    poll = select.poll()
    poll.register(parent, select.POLLIN)
    poll.poll()
    signal.alarm(GRACE)  # which needs the interpreter no more, where the lock is waited for with it
