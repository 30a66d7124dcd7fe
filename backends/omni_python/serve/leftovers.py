"""What servers that were killed leave behind, in shared memory and of processes, and how it goes."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from omni_python.control.stub_command import StubCommand
from omni_python.serve.server_options import SHARED_MEMORY

# As `ServerOptions` names servers: the launcher's pid, and a random part. Regions of stubs go on after that.
_REGION = re.compile(r"(omni_(\d+)_[0-9a-f]{8})_")


def remove_leftover_regions() -> list[str]:
    """Remove this user's shared-memory regions of servers that are gone; returns their names."""
    regions = [region for region in sorted(SHARED_MEMORY.glob("omni_*")) if _is_mine(region)]
    removed = []
    for name in _of_gone_servers(region.name for region in regions):
        with suppress(OSError):
            (SHARED_MEMORY / name).unlink()
            removed.append(name)
    return removed


def end_leftover_stubs() -> list[str]:
    """Kill this user's stubs of servers that are gone; returns what they served.

    A stub ends by itself when its server does, but not where it is stopped, or waits for the dead server's word with
    Python's lock held, as for a metric that it was making (24.10).
    """
    stubs: dict[str, tuple[int, str]] = {}  # by region
    for process in Path("/proc").glob("[0-9]*"):
        command = StubCommand.of(int(process.name))
        if command is not None and _is_mine(process):
            stubs[command.region] = (int(process.name), str(command.model_file))
    ended = []
    for region in _of_gone_servers(stubs):
        pid, model = stubs[region]
        with suppress(OSError):
            os.kill(pid, signal.SIGKILL)
            ended.append(model)
    return ended


def _is_mine(path: Path) -> bool:
    """False also where it has gone."""
    try:
        return path.stat().st_uid == os.getuid()
    except OSError:
        return False


def _of_gone_servers(regions: Iterable[str]) -> list[str]:
    """Those of servers of which neither the launcher nor a process with the server's name on its command line is
    there."""
    servers = {region: match for region in regions if (match := _REGION.match(region))}
    orphans = {region: match[1] for region, match in servers.items() if not Path(f"/proc/{match[2]}").exists()}
    running = _server_names() if orphans else set()  # after the launchers: a server may just have been started
    return [region for region, server in orphans.items() if server not in running]


def _server_names() -> set[str]:
    """The `--id` of every tritonserver that runs."""
    found: set[str] = set()
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            arguments = path.read_bytes().split(b"\0")
            found.update(os.fsdecode(a.removeprefix(b"--id=")) for a in arguments if a.startswith(b"--id="))
    return found
