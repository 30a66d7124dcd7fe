"""The private directory in which all processes of one server find each other's sockets.

It is agreed on without configuration: every stub process is a child of the same tritonserver, whose pid and
start time name the directory. Two servers of one user, or a server and its predecessor, never share one.
"""

from __future__ import annotations

import os
import re
import shutil
import stat
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from omni_python.control.proc_stat import process_stat
from omni_python.proto.errors import OmniError

_NAME = re.compile(r"omni-[0-9]+-([0-9]+)-([0-9]*)")
"""User, process and start time."""

_LONGEST_PATH = 107
"""Bytes of a socket's path (`sun_path` in unix(7), less its final zero)."""

_SHORTEST_BASE = len("/tmp")


def server_directory(base: Path, server_pid: int) -> Path:
    """Make, if needed, the directory of the server `server_pid` under `base`; only this user can enter it.

    Raises `OmniError` when it cannot be made, or exists but belongs to somebody else or is open to others.
    """
    path = _path(base, server_pid)
    try:
        for folder in (*reversed(base.parents), base):
            if not folder.is_dir():
                _make(folder, 0o755)
        _make(path, 0o700)
    except OSError as error:
        raise OmniError(
            f"cannot make {path}: {error.strerror}; set endpoints.base_path to a folder in which this user may write"
        ) from None
    if not _is_private(path):
        raise OmniError(f"{path} is not a private directory of this user; remove it or set endpoints.base_path")
    return path


def find_server_directory(base: Path, server_pid: int) -> Path | None:
    """The directory of a running server, if it has one under `base`."""
    path = _path(base, server_pid)
    return path if _is_private(path) else None


def running_servers(base: Path) -> dict[int, Path]:
    """The directories of this user's running servers under `base`, by the servers' process ids."""
    return {pid: path for path, pid, started in _directories(base) if _runs(pid, started)}


def remove_leftovers(directory: Path) -> list[Path]:
    """Remove sibling directories of this user whose server is gone (killed servers leave them behind)."""
    removed = []
    for path, pid, started in _directories(directory.parent):
        if path != directory and not _runs(pid, started):
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
    excess = len(os.fsencode(path)) - _LONGEST_PATH
    if excess > 0:
        most = len(os.fsencode(directory.parent)) - excess
        remedy = (
            f"set endpoints.base_path to a folder whose path has at most {most} bytes"
            if most >= _SHORTEST_BASE
            else f"give the pipeline a name that is shorter by at least {excess}"
        )
        raise OmniError(f"socket path {path} is longer than {_LONGEST_PATH} bytes; {remedy}")
    return str(path)


def _path(base: Path, server_pid: int) -> Path:
    return base / f"omni-{os.getuid()}-{server_pid}-{_start_time(server_pid)}"


def _make(folder: Path, mode: int) -> None:
    """With this mode, whatever the umask. What is there already, even as a link, is left alone."""
    with suppress(FileExistsError):
        folder.mkdir(mode)
        folder.chmod(mode)


def _is_private(path: Path) -> bool:
    """Whether it is a directory, no link to one, of this user, which nobody else can enter."""
    try:
        found = path.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & 0o077


def _directories(base: Path) -> Iterator[tuple[Path, int, str]]:
    """This user's directories under `base`, each with its server's process id and start time. Names that anybody may
    have given to something else are passed over."""
    for path in sorted(base.glob(f"omni-{os.getuid()}-*-*")):
        name = _NAME.fullmatch(path.name)
        if name is not None and _is_private(path):
            yield path, int(name[1]), name[2]


def _runs(pid: int, started: str) -> bool:
    """Whether the process that started then still runs; one without a start had ended before its name was made."""
    return started != "" and _start_time(pid) == started


def _start_time(pid: int) -> str:
    """The process's start time in clock ticks since boot, "" if there is none."""
    found = process_stat(pid)
    return "" if found is None else str(found.start_ticks)
