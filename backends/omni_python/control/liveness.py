"""What a coordinator tells a supervisor: a small file in the server's directory, written again and again."""

from __future__ import annotations

import errno
import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import msgspec

from omni_python.control.privacy import replace_file

PERIOD = 1.0
"""Seconds between two writings."""

_SUFFIX = ".alive"


class LifeSign(msgspec.Struct, frozen=True):
    """`pid` of the orchestrator, and how many requests it has that are not over; `complete`: all of its pipeline's
    processes are there, every replica."""

    pid: int
    requests: int
    draining: bool = False
    complete: bool = False


@dataclass(frozen=True)
class Liveness:
    """The newest sign of a pipeline's orchestrator; `written` is another number for each writing. It is a time of the
    wall clock, which may be set meanwhile: how old the sign is does not follow from it."""

    sign: LifeSign
    written: int


def write_life_sign(directory: Path, pipeline: str, sign: LifeSign) -> None:
    """Raises OSError where nothing can be written, as on a disk that others have filled; the sign before is then as new
    as this one."""
    path = directory / f"{pipeline}{_SUFFIX}"
    try:
        replace_file(path, msgspec.json.encode(sign))
    except OSError:
        with suppress(FileNotFoundError):
            os.utime(path)
        raise


def remove_life_sign(directory: Path, pipeline: str) -> None:
    """A coordinator that stops in order leaves none: a file that is there without its process tells of a death."""
    (directory / f"{pipeline}{_SUFFIX}").unlink(missing_ok=True)


def read_life_signs(directory: Path) -> dict[str, Liveness]:
    """By pipeline; files that cannot be read are left out. Raises OSError where this process has no descriptor left to
    read them with, since then nothing is known of any."""
    found = {}
    for path in _files(directory):
        try:
            sign = msgspec.json.decode(path.read_bytes(), type=LifeSign)
            found[path.name.removesuffix(_SUFFIX)] = Liveness(sign, path.stat().st_mtime_ns)
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE):
                raise
        except msgspec.MsgspecError:
            pass
    return found


def _files(directory: Path) -> list[Path]:
    try:
        names = os.listdir(directory)  # unlike Path.glob, which may keep to itself what fails
    except FileNotFoundError:
        return []
    return [directory / name for name in sorted(names) if name.endswith(_SUFFIX)]
