"""The command line with which Triton starts a process of its Python backend: a stub."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

_PROGRAM = "triton_python_backend_stub"
_MODEL_FILE, _REGION, _SERVER, _INSTANCE, _WORDS = 1, 2, 5, 8, 10
"""The places of words, from 24.10 to the sources of July 2026: behind the region two sizes, behind the server's process
id the backend's folder and a handle, behind the instance the folder of the model's backend."""


@dataclass(frozen=True)
class StubCommand:
    """`model_file` is <repository>/<model>/<version>/model.py, `region` the stub's own in shared memory, and `instance`
    the model's, as in Triton's log."""

    model_file: Path
    region: str
    server_pid: int
    instance: str

    @property
    def model(self) -> str:
        return self.model_file.parent.parent.name

    @classmethod
    def parse(cls, words: Sequence[str]) -> StubCommand | None:
        """None for any other program's."""
        if len(words) < _WORDS or Path(words[0]).name != _PROGRAM or not words[_SERVER].isdecimal():
            return None
        return cls(Path(words[_MODEL_FILE]), words[_REGION], int(words[_SERVER]), words[_INSTANCE])

    @classmethod
    def of(cls, pid: int) -> StubCommand | None:
        """None also for a process that is gone, or whose command line may not be read. Raises OSError where this
        process cannot open another file."""
        try:
            text = Path(f"/proc/{pid}/cmdline").read_text(errors="replace")
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            return None
        return cls.parse(text.removesuffix("\0").split("\0"))
