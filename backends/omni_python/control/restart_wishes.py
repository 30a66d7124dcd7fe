"""How a pipeline asks for its server to be started again: by a file in the server's directory, for the supervisor."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from omni_python.control.privacy import replace_file

_SUFFIX = ".restart"


def wish_restart(directory: Path, pipeline: str, why: str) -> None:
    """The directory, and the wish with it, is the server's: its successor begins without. `why` ends the sentence that
    begins with the server's name. Raises OSError where nothing can be written."""
    replace_file(directory / f"{pipeline}{_SUFFIX}", why.encode())


def restart_wishes(directory: Path) -> dict[str, str]:
    """Why each pipeline wants a restart, of those that do. Wishes stay: one that cannot be read now is found later."""
    wishes = {}
    with suppress(OSError):
        for path in sorted(directory.glob(f"*{_SUFFIX}")):
            with suppress(OSError):
                wishes[path.name.removesuffix(_SUFFIX)] = path.read_text()
    return wishes
