"""How long processes take to start."""

from __future__ import annotations

from omni_python.control.proc_stat import process_stat


class StartTimes:
    """By process and replica. A coordinator that was itself started again hears of its processes late and takes their
    ages for it, until they are started anew: of several figures the least counts."""

    def __init__(self) -> None:
        self._seconds: dict[tuple[str, int], float] = {}

    def started(self, process: str, replica: int, pid: int) -> None:
        """A process of this host is ready for the first time."""
        found = process_stat(pid)
        if found is not None:
            self._seconds[process, replica] = min(found.age, self._seconds.get((process, replica), found.age))

    def seconds(self, process: str, replica: int) -> float:
        """0 where nothing is known."""
        return self._seconds.get((process, replica), 0.0)
