"""What threads of a server have been at for long, as the kernel tells of each in /proc."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Generic, TypeVar

T = TypeVar("T")

PERIOD = 1.0
"""Seconds between two looks."""


class ServerThreads(Generic[T]):
    """`read(folder)` tells from a thread's folder in /proc what it is at, None where that is nothing to look for; it
    may raise OSError, as where the thread has ended. Not for several threads at once."""

    def __init__(self, server_pid: int, read: Callable[[Path], T | None], patience: float) -> None:
        self._tasks = Path(f"/proc/{server_pid}/task")
        self._read = read
        self._patience = patience
        self._next = 0.0
        self._since: dict[tuple[str, T], float] = {}

    def look(self, now: float) -> list[T]:
        """What threads were at, the same one each, at all looks of the last `patience` seconds. `now` is of the
        monotonic clock; nothing is looked at within `PERIOD` seconds of the last look."""
        if now < self._next:
            return []
        self._next = now + PERIOD
        self._since = {told: self._since.get(told, now) for told in self.told()}
        return [what for (_, what), since in self._since.items() if now - since >= self._patience]

    def told(self) -> list[tuple[str, T]]:
        """Of each thread by its id; empty where the server has ended."""
        told = []
        with suppress(OSError):
            for thread in os.listdir(self._tasks):
                with suppress(OSError):
                    if (what := self._read(self._tasks / thread)) is not None:
                        told.append((thread, what))
        return told
