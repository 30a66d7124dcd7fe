"""How a pipeline asks for its server to be started again: by a file in the server's directory, for the supervisor."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

_SUFFIX = ".restart"


def wish_restart(directory: Path, pipeline: str, why: str) -> None:
    """The directory, and the wish with it, is the server's: its successor begins without. `why` ends the sentence that
    begins with the server's name. Raises OSError where nothing can be written."""
    path = directory / f"{pipeline}{_SUFFIX}"
    draft = path.with_suffix(".draft-restart")
    draft.touch()
    draft.chmod(0o600)  # whatever the umask
    draft.write_text(why)
    draft.replace(path)


def restart_wishes(directory: Path) -> dict[str, str]:
    """Why each pipeline wants a restart, of those that do."""
    wishes = {}
    for path in sorted(directory.glob(f"*{_SUFFIX}")):
        with suppress(OSError):
            wishes[path.name.removesuffix(_SUFFIX)] = path.read_text()
    return wishes
