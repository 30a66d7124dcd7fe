"""The private directory in which all processes of one server find each other's sockets.

It is agreed on without configuration: every stub process is a child of the same tritonserver, whose pid and
start time name the directory. Two servers of one user, or a server and its predecessor, never share one.
"""

from __future__ import annotations

import os
import shutil
import stat
from contextlib import suppress
from pathlib import Path

from omni_python.control.proc_stat import process_stat
from omni_python.proto.errors import OmniError

_PREFIX = "omni-"

_LONGEST_PATH = 107
"""Bytes of a socket's path (`sun_path` in unix(7), less its final zero)."""


def server_directory(base: Path, server_pid: int) -> Path:
    """Make, if needed, the directory of the server `server_pid` under `base`; only this user can enter it.

    Raises `OmniError` when it exists but belongs to somebody else or is open to others.
    """
    path = base / f"{_PREFIX}{os.getuid()}-{server_pid}-{_start_time(server_pid)}"
    try:
        path.mkdir(mode=0o700, parents=True)
    except FileExistsError:
        found = path.lstat()
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
            raise OmniError(
                f"{path} is not a private directory of this user; remove it or set endpoints.base_path"
            ) from None
    return path


def find_server_directory(base: Path, server_pid: int) -> Path | None:
    """The directory of a running server, if it has one under `base`."""
    path = base / f"{_PREFIX}{os.getuid()}-{server_pid}-{_start_time(server_pid)}"
    return path if path.is_dir() else None


def running_servers(base: Path) -> dict[int, Path]:
    """The directories of this user's running servers under `base`, by the servers' process ids."""
    found = {}
    for path in sorted(base.glob(f"{_PREFIX}{os.getuid()}-*-*")):
        _, pid, started = path.name.removeprefix(_PREFIX).split("-", 2)
        if pid.isdigit() and _start_time(int(pid)) == started:
            found[int(pid)] = path
    return found


def remove_leftovers(directory: Path) -> list[Path]:
    """Remove sibling directories of this user whose server is gone (killed servers leave them behind)."""
    removed = []
    for path in directory.parent.glob(f"{_PREFIX}{os.getuid()}-*-*"):
        _, pid, started = path.name.removeprefix(_PREFIX).split("-", 2)
        if path != directory and pid.isdigit() and _start_time(int(pid)) != started:
            shutil.rmtree(path, ignore_errors=True)
            removed.append(path)
    return removed


def leave_directory(directory: Path) -> None:
    """Remove the directory if nothing is left in it."""
    with suppress(OSError):
        directory.rmdir()


def socket_address(directory: Path, name: str) -> str:
    """The path of the socket `name`. Raises `OmniError` where the path is longer than the system allows."""
    path = directory / name
    if len(os.fsencode(path)) > _LONGEST_PATH:
        raise OmniError(
            f"socket path {path} is longer than {_LONGEST_PATH} bytes; set endpoints.base_path to a shorter folder"
        )
    return str(path)


def _start_time(pid: int) -> str:
    """The process's start time in clock ticks since boot, "" if there is none."""
    found = process_stat(pid)
    return "" if found is None else str(found.start_ticks)
