"""What servers that were killed leave behind, in shared memory and of processes, and how it goes."""

from __future__ import annotations

import os
import re
import signal
from contextlib import suppress
from pathlib import Path

from omni_python.serve.server_options import SHARED_MEMORY

# As `ServerOptions` names servers: the launcher's pid, and a random part. Regions of stubs go on after that.
_REGION = re.compile(r"(omni_(\d+)_[0-9a-f]{8})_")


def remove_leftover_regions() -> list[str]:
    """Remove this user's shared-memory regions of servers that are gone; returns their names.

    A server counts as gone when neither its launcher nor a process with its name on the command line is there.
    """
    removed = []
    names = None
    for region in sorted(SHARED_MEMORY.glob("omni_*")):
        match = _REGION.match(region.name)
        with suppress(OSError):
            if match is None or region.stat().st_uid != os.getuid() or Path(f"/proc/{match[2]}").exists():
                continue
            names = _server_names() if names is None else names
            if match[1] not in names:
                region.unlink()
                removed.append(region.name)
    return removed


def end_leftover_stubs() -> list[str]:
    """Kill this user's stubs of servers that are gone; returns what they served.

    A stub ends by itself when its server does, but not where it is stopped, or waits for the dead server's word with
    Python's lock held, as for a metric that it was making (24.10).
    """
    ended = []
    names = None
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            arguments = path.read_bytes().decode(errors="replace").split("\0")
            if path.stat().st_uid != os.getuid() or not arguments[0].endswith("/triton_python_backend_stub"):
                continue
            match = next(filter(None, map(_REGION.match, arguments)), None)
            if match is None or Path(f"/proc/{match[2]}").exists():
                continue
            names = _server_names() if names is None else names
            if match[1] not in names:
                os.kill(int(path.parent.name), signal.SIGKILL)
                ended.append(arguments[1])
    return ended


def _server_names() -> set[str]:
    """The `--id` of every tritonserver that runs."""
    found: set[str] = set()
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            arguments = path.read_bytes().split(b"\0")
            found.update(a.removeprefix(b"--id=").decode() for a in arguments if a.startswith(b"--id="))
    return found
