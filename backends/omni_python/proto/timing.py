"""When a request's stages worked on it."""

from __future__ import annotations

import msgspec


class StageTiming(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """Seconds relative to a moment that the context tells: until the stage's scheduler got its first input, gave its
    first output (a chunk, or the result where it streams none), and gave its result."""

    stage: str
    start: float
    first: float
    end: float

    def shifted(self, seconds: float) -> StageTiming:
        """The same, relative to a moment `seconds` earlier."""
        return StageTiming(self.stage, self.start + seconds, self.first + seconds, self.end + seconds)
