"""When the stages of a process, and those before them, worked on a request."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from omni_python.proto.timing import StageTiming


@dataclass(slots=True)
class _Work:
    """Seconds of `time.monotonic()`; 0 for what has not happened yet."""

    start: float
    first: float = 0.0
    end: float = 0.0


class Timings:
    """Every result takes along when its stage and all stages before it worked, as seconds before it was sent, since
    hosts do not share a clock: so it costs no messages, and the coordinator gets all with the last results. The time
    that a message takes on its way is lost with each process.
    """

    def __init__(self) -> None:
        self._requests: dict[str, dict[str, _Work]] = {}

    def __len__(self) -> int:
        return len(self._requests)

    def began(self, request_id: str, stage: str) -> None:
        """A stage's scheduler got an input."""
        works = self._requests.setdefault(request_id, {})
        if stage not in works:
            works[stage] = _Work(time.monotonic())

    def gave(self, request_id: str, stage: str, result: bool = False) -> None:
        """A stage gave a chunk, or its result."""
        work = self._requests.get(request_id, {}).get(stage)
        if work is None:
            return
        now = time.monotonic()
        work.first = work.first or now
        if result:
            work.end = now

    def heard(self, request_id: str, timings: Sequence[StageTiming]) -> None:
        """A result from another process came with these."""
        if not timings:
            return
        now = time.monotonic()
        works = self._requests.setdefault(request_id, {})
        for ago in timings:
            works.setdefault(ago.stage, _Work(now + ago.start, now + ago.first, now + ago.end))

    def told(self, request_id: str) -> tuple[StageTiming, ...]:
        """What to send along with a result, relative to now: the stages that have given theirs."""
        now = time.monotonic()
        timings = []
        for stage, work in list(self._requests.get(request_id, {}).items()):
            if work.end:
                timings.append(StageTiming(stage, work.start - now, work.first - now, work.end - now))
        return tuple(timings)

    def drop(self, request_id: str) -> None:
        self._requests.pop(request_id, None)
