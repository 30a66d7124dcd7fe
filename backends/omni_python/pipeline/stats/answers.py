"""How answers come to their clients, and how speech sounds as it comes: counts for /metrics.

Times are taken where responses leave this process: what the network adds is not in them.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from omni_python.pipeline.answer_parts import ResponseSink
from omni_python.pipeline.stats.playback import Playback
from omni_python.proto.errors import Cancelled, OmniError
from omni_python.proto.histogram import Histogram
from omni_python.proto.payload import AudioOutput, Payload, TextOutput
from omni_python.proto.timing import StageTiming
from omni_python.proto.trace import Trace

End = Literal["completed", "failed", "aborted"]

DURATIONS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
FIRSTS = (0.01, 0.02, 0.04, 0.08, 0.12, 0.16, 0.25, 0.35, 0.5, 0.75, 1.0, 2.0, 5.0, 10.0)
INTERVALS = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56)
SILENCES = (0.001, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
FACTORS = (0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 0.8, 0.9, 1.0, 1.2, 1.5, 2.0, 5.0)

HEARD = 0.001
"""Seconds of silence from which speech is broken: less is the clock's."""


@dataclass(slots=True)
class AnswerTotals:
    """What was sent of all answers that ended alike. Tokens and frames are known of parts that were complete."""

    input_tokens: int = 0
    output_tokens: int = 0
    audio_frames: int = 0
    audio_samples: int = 0
    audio_seconds: float = 0.0


class AnswerStats:
    """Of all answers of a pipeline. Written with `lock` held; read on any thread."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.first_text = Histogram(FIRSTS)
        """Seconds from admission; this and the next three of streamed answers alone."""
        self.first_audio = Histogram(FIRSTS)
        self.text_intervals = Histogram(INTERVALS)
        """Seconds from one chunk of an answer to the next of the same kind."""
        self.audio_intervals = Histogram(INTERVALS)
        self.silence = Histogram(SILENCES)
        """Seconds that the listeners of streamed answers with speech heard nothing, however those ended."""
        self.continuous = 0
        """How many of those were heard without a break."""
        self.broken = 0
        self.real_time_factor = Histogram(FACTORS)
        """Of completed answers with speech: from admission to the last of it, by its duration."""
        self.durations: dict[End, Histogram] = {end: Histogram(DURATIONS) for end in _ENDS}
        """Seconds from admission to the last response."""
        self.totals: dict[End, AnswerTotals] = {end: AnswerTotals() for end in _ENDS}


_ENDS: tuple[End, ...] = ("completed", "failed", "aborted")


class MeasuredSink:
    """`inner`, with everything that was sent to it counted. Make it when its request comes."""

    __slots__ = (
        "_admitted",
        "_clock",
        "_inner",
        "_last_audio",
        "_last_text",
        "_playback",
        "_stats",
        "_stream",
        "_sums",
    )

    def __init__(
        self, inner: ResponseSink, stats: AnswerStats, stream: bool, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._inner = inner
        self._stats = stats
        self._stream = stream
        self._clock = clock
        self._admitted = clock()
        self._last_text = self._last_audio = 0.0
        self._playback: Playback | None = None
        self._sums = AnswerTotals()

    def traced(self, trace_id: str) -> None:
        self._inner.traced(trace_id)

    def chunk(self, payload: Payload) -> None:
        self._inner.chunk(payload)
        self._count(payload)

    def result(self, stage: str, payload: Payload) -> None:
        self._inner.result(stage, payload)
        self._count(payload)
        if type(payload) is TextOutput:
            self._sums.input_tokens += payload.num_input_tokens
            self._sums.output_tokens += payload.num_output_tokens
        elif type(payload) is AudioOutput:
            self._sums.audio_frames += payload.num_frames

    def finish(self, timings: Sequence[StageTiming], trace: Trace | None = None) -> None:
        try:
            self._inner.finish(timings, trace)
        finally:
            self._end("completed")

    def fail(self, error: OmniError) -> None:
        try:
            self._inner.fail(error)
        finally:
            self._end("aborted" if isinstance(error, Cancelled) else "failed")

    def is_cancelled(self) -> bool:
        return self._inner.is_cancelled()

    def _count(self, payload: Payload) -> None:
        if type(payload) is TextOutput:
            if payload.text and self._stream:
                now = self._clock()
                self._observe(now, self._last_text, self._stats.first_text, self._stats.text_intervals)
                self._last_text = now
        elif type(payload) is AudioOutput and len(payload.samples):
            now = self._clock()
            self._sums.audio_samples += len(payload.samples)
            self._playback = self._playback or Playback()
            self._playback.hear(now, len(payload.samples) / payload.sample_rate)
            if self._stream:
                self._observe(now, self._last_audio, self._stats.first_audio, self._stats.audio_intervals)
            self._last_audio = now

    def _observe(self, now: float, last: float, first: Histogram, intervals: Histogram) -> None:
        with self._stats.lock:
            if last:
                intervals.observe(now - last)
            else:
                first.observe(now - self._admitted)

    def _end(self, end: End) -> None:
        now, stats, sums, playback = self._clock(), self._stats, self._sums, self._playback
        with stats.lock:
            stats.durations[end].observe(now - self._admitted)
            totals = stats.totals[end]
            totals.input_tokens += sums.input_tokens
            totals.output_tokens += sums.output_tokens
            totals.audio_frames += sums.audio_frames
            totals.audio_samples += sums.audio_samples
            if playback is None:
                return
            totals.audio_seconds += playback.seconds
            if end == "completed":
                stats.real_time_factor.observe((self._last_audio - self._admitted) / playback.seconds)
            if self._stream:
                stats.silence.observe(playback.silence)
                if playback.silence < HEARD:
                    stats.continuous += 1
                else:
                    stats.broken += 1
