"""File descriptors, of which servers need many."""

from __future__ import annotations

import resource
from contextlib import suppress


def raise_limit() -> None:
    """Let this process, and what it starts, have as many as the system allows: shells and systemd give 1024 by default,
    for the sake of programs that use select."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(ValueError, OSError):  # a limit that was set from outside meanwhile
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
