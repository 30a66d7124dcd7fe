"""One request as its client saw it."""

from __future__ import annotations

import itertools
from typing import Any

import msgspec

from omni_python.proto.timing import StageTiming


class Piece(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """Speech that came at `time`, and how long it is; seconds."""

    time: float
    audio_s: float


class RequestRecord(msgspec.Struct, tag="request", kw_only=True):
    """Times are seconds from the load's start. `due` is when the request should have been sent; `texts` and `speech`
    are what came when. `error` is the class of the client's error, "" where the answer is complete. `stages` is when
    each stage worked, in seconds since the server admitted the request: name, start, first output, end."""

    load: str
    index: int
    question: int
    counted: bool
    due: float
    sent: float
    ended: float = 0.0
    texts: list[float] = []
    speech: list[Piece] = []
    error: str = ""
    message: str = ""
    finish_reason: str = ""
    usage: dict[str, Any] = {}
    stages: list[StageTiming] = []

    @property
    def refused(self) -> bool:
        """Whether the server said at once that it cannot take the request now."""
        return self.error == "Unavailable" and not self.texts and not self.speech

    @property
    def total(self) -> float:
        return self.ended - self.sent

    @property
    def first_text(self) -> float | None:
        """Seconds from sending to the first text."""
        return self.texts[0] - self.sent if self.texts else None

    @property
    def first_audio(self) -> float | None:
        """Seconds from sending to the first speech."""
        return self.speech[0].time - self.sent if self.speech else None

    @property
    def audio_s(self) -> float:
        """How long the speech is."""
        return sum(piece.audio_s for piece in self.speech)

    @property
    def gaps(self) -> list[float]:
        """Seconds between one piece and the next, of speech, or of text where there is no speech."""
        times = [piece.time for piece in self.speech] or self.texts
        return [later - earlier for earlier, later in itertools.pairwise(times)]

    @property
    def longest_gap(self) -> float | None:
        return max(self.gaps, default=None)

    @property
    def real_time_factor(self) -> float | None:
        """Seconds that the whole answer took for each second of its speech."""
        return self.total / self.audio_s if self.audio_s else None

    @property
    def underrun(self) -> float | None:
        """Seconds of silence that one would hear whose player starts with the first piece; None without speech."""
        if not self.speech:
            return None
        silence = 0.0
        played_until = self.speech[0].time
        for piece in self.speech:
            silence += max(0.0, piece.time - played_until)
            played_until = max(piece.time, played_until) + piece.audio_s
        return silence
