"""Sockets of the server that a process inherits."""

from __future__ import annotations

import fcntl
import os
from contextlib import suppress
from pathlib import Path

_STANDARD_STREAMS = 3


def close_inherited_sockets() -> None:
    """Close this process's copies of the server's sockets.

    Triton's HTTP front lets its sockets be inherited (24.10), so that a stub that is started later holds ports and the
    connections of that moment: a client whose connection the server closes would not hear of it before the stub ends.
    Sockets that this process opened itself close on exec, which tells them from those.
    """
    for path in list(Path("/proc/self/fd").iterdir()):
        with suppress(OSError):  # such as the one of that folder
            if int(path.name) >= _STANDARD_STREAMS and os.readlink(path).startswith("socket:"):
                _close_if_inherited(int(path.name))


def _close_if_inherited(descriptor: int) -> None:
    if not fcntl.fcntl(descriptor, fcntl.F_GETFD) & fcntl.FD_CLOEXEC:
        os.close(descriptor)
