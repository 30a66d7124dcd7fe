"""A debugger that stops a process."""

from __future__ import annotations

import subprocess
import sys

import pytest

# ptrace(2): PTRACE_SEIZE, which sends no signal that could stay behind, and PTRACE_INTERRUPT. The kernel lets go of a
# process whose tracer ends. One that dies is dead for its parent only once its tracer has taken note.
_TRACER = """
import ctypes, os, sys, threading
from pathlib import Path
libc = ctypes.CDLL(None, use_errno=True)
for task in Path(f"/proc/{sys.argv[1]}/task").iterdir():
    if libc.ptrace(0x4206, int(task.name), 0, 0) or libc.ptrace(0x4207, int(task.name), 0, 0):
        sys.exit(os.strerror(ctypes.get_errno()))
def take_note():
    while True:
        os.waitpid(-1, 0x40000000)  # __WALL
threading.Thread(target=take_note, daemon=True).start()
print("stopped", flush=True)
sys.stdin.read()
os._exit(0)
"""


class Traced:
    """A context manager: all threads of a process are stopped as a debugger stops them, and go on afterwards. Passes
    the test over where no process may be traced."""

    def __init__(self, pid: int) -> None:
        command = [sys.executable, "-c", _TRACER, str(pid)]
        self._tracer = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)

    def __enter__(self) -> Traced:
        assert self._tracer.stdout is not None and self._tracer.stderr is not None
        if not self._tracer.stdout.readline():
            pytest.skip(f"no process may be traced here: {self._tracer.stderr.read().decode()}")
        return self

    def __exit__(self, *exc: object) -> None:
        self._tracer.communicate(timeout=10)
