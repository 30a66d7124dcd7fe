"""Finds a server that has crashed and does not end.

Triton's handler of fatal signals prints a stack trace, for which it forks. Where the crash came inside malloc (`free`
found the heap corrupt) the thread has a lock that fork waits for: it waits for itself, for ever. Such a server goes on
to answer its health by HTTP, and no request by gRPC (seen with 24.10 under `scripts/soak`).
"""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from pathlib import Path

PERIOD = 1.0
"""Seconds between two looks."""

PATIENCE = 3.0
"""Seconds that the handler may take. It is done within half a second."""

_FATAL = (signal.SIGABRT, signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL)


class StuckCrash:
    """Of one server. While a thread handles a signal the kernel keeps that signal from it, and tells so in /proc. Not
    for several threads at once."""

    def __init__(self, server_pid: int) -> None:
        self._tasks = Path(f"/proc/{server_pid}/task")
        self._next = 0.0
        self._since: dict[tuple[str, str], float] = {}  # by thread and signal

    def look(self, now: float) -> str:
        """The signal that a thread has handled at each look of the last `PATIENCE` seconds, or "". `now` is of the
        monotonic clock; nothing is looked at within `PERIOD` seconds of the last look."""
        if now < self._next:
            return ""
        self._next = now + PERIOD
        self._since = {handled: self._since.get(handled, now) for handled in self._handled()}
        return next((name for (_, name), since in self._since.items() if now - since >= PATIENCE), "")

    def _handled(self) -> list[tuple[str, str]]:
        handled = []
        with suppress(OSError):  # the server has ended
            for thread in os.listdir(self._tasks):
                with suppress(OSError):  # the thread has ended
                    if name := _handled_by(self._tasks / thread / "status"):
                        handled.append((thread, name))
        return handled


def _handled_by(status: Path) -> str:
    """The one fatal signal that a thread blocks. Threads that leave all signals to others block several."""
    for line in status.read_text(errors="replace").splitlines():
        if line.startswith("SigBlk:"):
            mask = int(line.split()[1], 16)
            blocked = [number.name for number in _FATAL if mask >> (number - 1) & 1]
            return blocked[0] if len(blocked) == 1 else ""
    return ""
