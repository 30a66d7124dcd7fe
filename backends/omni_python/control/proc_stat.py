"""What the kernel says of a process in /proc/PID/stat."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path

_STATE, _STARTED = 0, 19  # fields 3 and 22, counted from the one behind the program's name


@dataclass(frozen=True)
class ProcessStat:
    """`start_ticks`: when it started, in clock ticks since boot."""

    state: str
    start_ticks: int

    @property
    def is_running(self) -> bool:
        """Whether it is no zombie."""
        return self.state not in "ZX"

    @property
    def age(self) -> float:
        """Seconds since its start."""
        return time.clock_gettime(time.CLOCK_BOOTTIME) - self.start_ticks / os.sysconf("SC_CLK_TCK")


def process_stat(pid: int) -> ProcessStat | None:
    """None where there is no such process."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(errors="replace")  # a long name may be cut within a character
    except OSError:
        return None
    fields = text.rpartition(")")[2].split()
    return ProcessStat(fields[_STATE], int(fields[_STARTED]))


def is_running(pid: int) -> bool:
    """Whether there is such a process and it is no zombie."""
    process = process_stat(pid)
    return process is not None and process.is_running
