"""How speech sounds to one who hears it as it comes."""

from __future__ import annotations


class Playback:
    """A listener who plays speech from its first chunk on, at its sample rate, and hears nothing while nothing is
    there."""

    __slots__ = ("_played_until", "seconds", "silence")

    def __init__(self) -> None:
        self._played_until = 0.0  # when all that has come will have been played
        self.seconds = 0.0
        """Of speech that has come."""
        self.silence = 0.0
        """Seconds of it between the first chunk and the last."""

    def hear(self, now: float, seconds: float) -> None:
        """`seconds` of speech come; `now` is in seconds of any clock that never goes back."""
        if self.seconds and now > self._played_until:
            self.silence += now - self._played_until
        if not self.seconds or now > self._played_until:
            self._played_until = now
        self._played_until += seconds
        self.seconds += seconds
