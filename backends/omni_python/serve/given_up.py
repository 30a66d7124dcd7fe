"""Finds stubs that Triton has given up: both then wait for each other, and would for ever.

While a stub builds its model, a thread of it shows life every 300 ms, and Triton looks for that once a second (24.10;
every 5 s in the sources of July 2026). Where it finds none, since the machine was paused or had to swap, it lets go of
the model and waits for the process to end, but neither tells it nor ends it (`StubLauncher::Launch` of the Python
backend). A server then never becomes ready; a model that is loaded again is never there, and holds up whoever asked.
"""

from __future__ import annotations

import platform
from dataclasses import dataclass
from pathlib import Path

from omni_python.control.proc_stat import is_running
from omni_python.control.stub_command import StubCommand
from omni_python.serve.server_threads import ServerThreads

PATIENCE = 8.0
"""Seconds that Triton has to have waited. It also waits for a stub whose model is unloaded, but not for so long: such a
process ends itself within 5 s (`model.EXIT_TIMEOUT`)."""

_WAIT4 = {"x86_64": "61", "aarch64": "260"}
"""The system call in which a thread waits for a child, by machine."""


@dataclass(frozen=True)
class Stub:
    pid: int
    name: str
    """Of its model's instance, as in Triton's log."""


class GivenUpStubs:
    """Those of one server. The kernel tells the processes' parent which call a thread is in, and with what arguments;
    where it does not (`kernel.yama.ptrace_scope` above 1, gVisor), nothing is ever found. Not for several threads at
    once."""

    def __init__(self, server_pid: int) -> None:
        self._wait4 = _WAIT4.get(platform.machine(), "none")
        self._threads = ServerThreads(server_pid, self._waits_for, PATIENCE)

    def look(self, now: float) -> list[Stub]:
        """Those that Triton has waited for through `PATIENCE` seconds; see `ServerThreads.look`."""
        commands = {pid: StubCommand.of(pid) for pid in self._threads.look(now)}
        return [Stub(pid, command.instance if command else f"process {pid}") for pid, command in commands.items()]

    def _waits_for(self, thread: Path) -> int | None:
        call, *arguments = (thread / "syscall").read_text().split()
        return pid if call == self._wait4 and is_running(pid := int(arguments[0], 16)) else None
