"""Who ran this process's model before: where its files have changed, Triton loads a model's new instance before it ends
the old one."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from omni_python.control.proc_stat import process_stat

_REGION = 2
"""The word on a stub's command line that is its own: its shared memory. The others name model, instance and server."""


def predecessors() -> list[int]:
    """The ids of older processes that run the same instance of the same model for the same server."""
    me, found = process_stat(os.getpid()), []
    assert me is not None
    instance = _instance("self")
    for path in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if _instance(path.name) == instance:
                other = process_stat(int(path.name))
                if other is not None and other.is_running and other.start_ticks < me.start_ticks:
                    found.append(int(path.name))
    return found


def _instance(process: str) -> list[bytes]:
    words = Path(f"/proc/{process}/cmdline").read_bytes().split(b"\0")
    return words[:_REGION] + words[_REGION + 1 :]
