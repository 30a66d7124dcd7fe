"""Where a speaker begins and ends, in a stream of samples."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from omni_python.serve.openai.realtime.audio import Resampler
from omni_python.serve.openai.realtime.session import ServerVad
from omni_python.serve.openai.realtime.silero import SAMPLE_RATE, WINDOW, SileroVad

_HYSTERESIS = 0.15
"""How far below the threshold a window counts as silent, as silero-vad's own iterator has it."""


@dataclass(frozen=True)
class Edge:
    """Speech begins (`speaking`) or has ended at this sample of the stream; the silence that ended it is before."""

    speaking: bool
    sample: int


class TurnDetector:
    """One stream at `rate` Hz, whose next sample has the number `start`."""

    def __init__(self, settings: ServerVad, rate: int, start: int) -> None:
        self.speaking = False
        self._settings, self._rate, self._start = settings, rate, start
        self._network = SileroVad()
        self._resampler = Resampler(rate, SAMPLE_RATE)
        self._rest = np.empty(0, np.float32)
        self._windows = 0
        self._silent_windows = 0

    def feed(self, samples: np.ndarray) -> list[Edge]:
        """What the stream's next samples, float32 [n] in -1..1, tell."""
        heard = np.concatenate([self._rest, self._resampler.push(samples)])
        whole = len(heard) // WINDOW * WINDOW
        self._rest = heard[whole:]
        return [edge for window in heard[:whole].reshape(-1, WINDOW) for edge in self._step(window)]

    def _step(self, window: np.ndarray) -> Iterator[Edge]:
        probability = self._network.probability(window)
        begin = self._sample()
        self._windows += 1
        if probability >= self._settings.threshold:
            self._silent_windows = 0
            if not self.speaking:
                self.speaking = True
                yield Edge(True, begin)
        elif self.speaking and (self._silent_windows or probability < self._settings.threshold - _HYSTERESIS):
            self._silent_windows += 1
            if self._silent_windows * WINDOW * 1000 >= self._settings.silence_duration_ms * SAMPLE_RATE:
                self.speaking, self._silent_windows = False, 0
                yield Edge(False, self._sample())

    def _sample(self) -> int:
        """Where the windows so far end, in the stream's own samples."""
        return self._start + self._windows * WINDOW * self._rate // SAMPLE_RATE
