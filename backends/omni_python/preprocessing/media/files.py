"""Local files below an allowed folder."""

from __future__ import annotations

import os
import stat
from urllib.parse import unquote_to_bytes, urlsplit

from omni_python.preprocessing.media.budget import Budget
from omni_python.proto.errors import InvalidArgument

_PIECE = 1 << 20
# O_NONBLOCK: opening a named pipe must not wait for its other end.
_OPEN = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY


def read_file_url(url: str, root: str, budget: Budget) -> bytearray:
    """The content of the regular file that a `file:` URL names.

    Links are resolved first, and the outcome must lie below `root`; each of its folders is then opened without
    following links, so that nothing that is swapped in meanwhile leads elsewhere. Raises `InvalidArgument`.
    """
    below = f"local files are read below {root} only"
    path = _path(url)
    if ".." in path.split("/"):
        raise InvalidArgument(f"file URLs must not contain '..'; {below}")
    real_root = os.path.realpath(root)
    if not any(_is_below(path, folder) for folder in (root, real_root)):
        raise InvalidArgument(f"{url!r} is not allowed; {below}")
    try:
        real = os.path.realpath(path)
        if not _is_below(real, real_root):
            raise InvalidArgument(f"{url!r} is not allowed; {below}")
        return _read(os.path.relpath(real, real_root), real_root, budget)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise InvalidArgument(f"{url!r} cannot be read ({reason})") from None


def _path(url: str) -> str:
    try:
        parts = urlsplit(url)
        path = os.fsdecode(unquote_to_bytes(parts.path))  # names of files are bytes, in whatever encoding
    except ValueError as error:
        raise InvalidArgument(f"{url!r} is no URL: {error}") from None
    unusable = parts.query or parts.fragment or not path.startswith("/") or "\0" in path
    if parts.netloc not in ("", "localhost") or unusable:
        raise InvalidArgument("a file URL must look like file:///folder/name, with %-escapes for special characters")
    return path


def _is_below(path: str, folder: str) -> bool:
    return os.path.normpath(path).startswith(os.path.normpath(folder).rstrip("/") + "/")


def _read(relative: str, root: str, budget: Budget) -> bytearray:
    *folders, name = relative.split("/")
    here = os.open(root, _OPEN | os.O_DIRECTORY)
    try:
        for folder in folders:
            inner = os.open(folder, _OPEN | os.O_DIRECTORY, dir_fd=here)
            os.close(here)
            here = inner
        file = os.open(name, _OPEN, dir_fd=here)
    finally:
        os.close(here)
    try:
        status = os.fstat(file)
        if not stat.S_ISREG(status.st_mode):
            raise InvalidArgument(f"{name!r} is no regular file")
        budget.check(status.st_size)
        content = bytearray()
        while piece := os.read(file, _PIECE):
            budget.seconds()
            budget.take(len(piece))
            content += piece
        return content
    finally:
        os.close(file)
