"""Finds a server that has crashed and does not end.

Triton's handler of fatal signals prints a stack trace, for which it forks. Where the crash came inside malloc (`free`
found the heap corrupt) the thread has a lock that fork waits for: it waits for itself, for ever. Such a server goes on
to answer its health by HTTP, and no request by gRPC (seen with 24.10 under `scripts/soak`).
"""

from __future__ import annotations

import signal
from pathlib import Path

from omni_python.serve.server_threads import ServerThreads

PATIENCE = 3.0
"""Seconds that the handler may take. It is done within half a second."""

_FATAL = (signal.SIGABRT, signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL)


class StuckCrash:
    """Of one server. While a thread handles a signal the kernel keeps that signal from it, and tells so in /proc. Not
    for several threads at once."""

    def __init__(self, server_pid: int) -> None:
        self._threads = ServerThreads(server_pid, _handled, PATIENCE)

    def look(self, now: float) -> str:
        """The signal that a thread has handled for `PATIENCE` seconds, or ""; see `ServerThreads.look`."""
        return next(iter(self._threads.look(now)), "")


def _handled(thread: Path) -> str | None:
    """The one fatal signal that a thread blocks. Threads that leave all signals to others block several."""
    for line in (thread / "status").read_text(errors="replace").splitlines():
        if line.startswith("SigBlk:"):
            mask = int(line.split()[1], 16)
            blocked = [number.name for number in _FATAL if mask >> (number - 1) & 1]
            return blocked[0] if len(blocked) == 1 else None
    return None
