"""Who ran this process's model before: where its files have changed, Triton loads a model's new instance before it ends
the old one."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

from omni_python.control.proc_stat import process_stat
from omni_python.control.stub_command import StubCommand


def predecessors() -> list[int]:
    """The ids of older processes that run the same instance of the same model for the same server."""
    me, instance, found = process_stat(os.getpid()), _instance(os.getpid()), []
    assert me is not None and instance is not None
    for path in Path("/proc").glob("[0-9]*"):
        if _instance(pid := int(path.name)) == instance:
            other = process_stat(pid)
            if other is not None and other.is_running and other.start_ticks < me.start_ticks:
                found.append(pid)
    return found


def _instance(pid: int) -> StubCommand | None:
    """What of a stub's command line is not its process's own."""
    command = StubCommand.of(pid)
    return command and replace(command, region="")
