"""Keeping what lies in shared memory and in files from other users of the machine."""

from __future__ import annotations

import os
import re
from contextlib import suppress
from pathlib import Path

SHARED_MEMORY = "/dev/shm"


def hide_mapped_regions() -> list[str]:
    """Let nobody but this user open the regions of /dev/shm that this process has mapped; returns their paths.

    Triton's Python backend makes its regions, through which requests go, with mode 0644 whatever the umask is. They
    keep their mode as they grow, so once before the first request is enough.
    """
    mapped = re.findall(rf" ({SHARED_MEMORY}/\S+)$", Path("/proc/self/maps").read_text(), re.MULTILINE)
    hidden = []
    for path in sorted(set(mapped)):
        with suppress(OSError):  # removed meanwhile, and perhaps a link of somebody else's in its place
            descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
            try:
                if os.fstat(descriptor).st_uid == os.getuid():  # else somebody else's to decide about
                    os.fchmod(descriptor, 0o600)
                    hidden.append(path)
            finally:
                os.close(descriptor)
    return hidden


def replace_file(path: Path, content: bytes) -> None:
    """Write a file that only this user can open, whatever the umask, and in one step, so that nobody reads half of it.
    Raises OSError where nothing can be written."""
    draft = path.with_name(f"{path.name}.draft")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        os.fchmod(descriptor, 0o600)
        file.write(content)
    draft.replace(path)
