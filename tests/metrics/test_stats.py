"""Counts against a plain account of the same events."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence

import numpy as np
import pytest

from omni_python.pipeline.stats.answers import AnswerStats, End, MeasuredSink
from omni_python.pipeline.stats.edges import EdgeStats
from omni_python.pipeline.stats.playback import Playback
from omni_python.pipeline.stats.stages import StageStats
from omni_python.proto.errors import Cancelled, ErrorCode, OmniError, Unavailable
from omni_python.proto.histogram import Histogram
from omni_python.proto.messages import Envelope
from omni_python.proto.payload import AudioOutput, Payload, TextOutput
from omni_python.proto.refs import CudaRef, ShmRef
from omni_python.proto.timing import StageTiming
from omni_python.proto.trace import Trace

RATE = 100
"""Samples a second: a player of a hundred ticks."""


def silent_ticks(chunks: Sequence[tuple[int, int]]) -> int:
    """Ticks of a player's clock without a sample to play, from the first chunk (tick, samples) to the last one."""
    waiting, silent, left = 0, 0, list(chunks)
    for tick in range(chunks[0][0], chunks[-1][0]):
        while left and left[0][0] <= tick:
            waiting += left.pop(0)[1]
        silent += waiting == 0
        waiting -= waiting > 0
    return silent


@pytest.mark.parametrize("seed", range(20))
def test_playback_is_silent_where_a_player_is(seed: int) -> None:
    draw = random.Random(f"{seed} {time.time_ns()}")
    ticks = sorted(draw.sample(range(1, 400), draw.randint(1, 12)))
    chunks = [(tick, draw.randint(1, 60)) for tick in ticks]
    playback = Playback()
    for tick, samples in chunks:
        playback.hear(tick / RATE, samples / RATE)
    assert playback.silence * RATE == pytest.approx(silent_ticks(chunks))
    assert playback.seconds * RATE == pytest.approx(sum(samples for _, samples in chunks))


def test_a_histogram_counts_as_numpy_does() -> None:
    draw = np.random.default_rng()
    bounds = np.sort(draw.choice(np.arange(1, 100), 9, replace=False)) / 10
    values = draw.integers(0, 120, 1000) / 10  # many lie on a bound
    histogram = Histogram(bounds.tolist())
    for value in values.tolist():
        histogram.observe(value)
    assert histogram.cumulative == (*(int((values <= bound).sum()) for bound in bounds), 1000)
    assert histogram.sum == pytest.approx(values.sum())


class Kept:
    """The inner sink: keeps what it is given; the clock moves between."""

    def __init__(self) -> None:
        self.now = 100.0
        self.given: list[object] = []

    def clock(self) -> float:
        return self.now

    def traced(self, trace_id: str) -> None:
        self.given.append(trace_id)

    def chunk(self, payload: Payload) -> None:
        self.given.append(payload)

    def result(self, stage: str, payload: Payload) -> None:
        self.given.append(payload)

    def finish(self, timings: Sequence[StageTiming], trace: Trace | None = None) -> None:
        self.given.append("finish")

    def fail(self, error: OmniError) -> None:
        self.given.append(error)

    def is_cancelled(self) -> bool:
        return False


def speech(seconds: float, **end: int) -> AudioOutput:
    return AudioOutput(np.zeros(round(seconds * 1000), np.float32), 1000, **end)  # type: ignore[arg-type]


def spoken(stats: AnswerStats, stream: bool, error: OmniError | None = None) -> Kept:
    """Text after 0.1 and 0.3 s; a second of speech after 1, half a second after 2.25, which is 0.25 s too late."""
    kept = Kept()
    sink = MeasuredSink(kept, stats, stream, kept.clock)
    for at, payload in [(0.1, TextOutput("a")), (0.3, TextOutput("b")), (1.0, speech(1)), (2.25, speech(0.5))]:
        kept.now = 100 + at
        sink.chunk(payload)
    kept.now = 103.0
    sink.result("text", TextOutput("", "stop", 7, 2))
    if error is None:
        sink.result("speech", speech(0, num_frames=15))
        sink.finish(())
    else:
        sink.fail(error)
    return kept


def test_a_streamed_answer() -> None:
    stats = AnswerStats()
    kept = spoken(stats, stream=True)
    assert len(kept.given) == 7 and kept.given[-1] == "finish"
    for histogram, seconds in [
        (stats.first_text, 0.1),
        (stats.first_audio, 1.0),
        (stats.text_intervals, 0.2),
        (stats.audio_intervals, 1.25),
        (stats.silence, 0.25),
        (stats.real_time_factor, 2.25 / 1.5),
        (stats.durations["completed"], 3.0),
    ]:
        assert histogram.cumulative[-1] == 1 and histogram.sum == pytest.approx(seconds)
    assert (stats.continuous, stats.broken) == (0, 1)
    totals = stats.totals["completed"]
    assert (totals.input_tokens, totals.output_tokens) == (7, 2)
    assert (totals.audio_frames, totals.audio_samples, totals.audio_seconds) == (15, 1500, 1.5)


def test_an_answer_in_one_piece_has_no_first_chunk() -> None:
    stats = AnswerStats()
    spoken(stats, stream=False)
    assert stats.first_text.cumulative[-1] == stats.first_audio.cumulative[-1] == stats.silence.cumulative[-1] == 0
    assert stats.real_time_factor.cumulative[-1] == 1


@pytest.mark.parametrize(("error", "end"), [(Cancelled("left"), "aborted"), (Unavailable("died"), "failed")])
def test_what_an_unfinished_answer_had_counts_apart(error: OmniError, end: End) -> None:
    stats = AnswerStats()
    spoken(stats, stream=True, error=error)
    assert stats.totals[end].audio_samples == 1500 and stats.durations[end].cumulative[-1] == 1
    assert stats.totals["completed"].audio_samples == stats.real_time_factor.cumulative[-1] == 0


def test_a_stage_waits_until_its_scheduler_begins() -> None:
    stats = StageStats()
    for request in ("a", "b", "c", "d"):
        stats.queued(request)
    assert (stats.waiting, stats.running) == (4, 0)
    stats.began("a")
    stats.began("b")
    assert (stats.waiting, stats.running) == (2, 2)
    stats.ended("a", None, was_open=True)
    stats.ended("b", ErrorCode.INTERNAL, was_open=True)
    stats.ended("c", ErrorCode.CANCELLED, was_open=True)
    stats.ended("unknown", ErrorCode.CANCELLED, was_open=False)
    stats.began("c")  # the news had not reached the scheduler yet
    assert (stats.waiting, stats.running) == (1, 0)
    assert (stats.aborts, dict(stats.errors)) == (1, {ErrorCode.INTERNAL: 1})
    assert stats.wait.cumulative[-1] == 3 and stats.run.cumulative[-1] == 1


def test_an_edge_counts_bytes_where_they_went() -> None:
    edges = EdgeStats()
    shm = ShmRef(1, 1000, 1, 1, 1 << 20, 0)
    edges.by_reference("a", "b", is_chunk=True)
    edges.sent("a", "c", Envelope("t", b"12345", b"678"))
    edges.sent("a", "c", Envelope("t", b"12345", ref=shm), is_chunk=True)
    edges.sent("a", "c", Envelope("t", b"12345", ref=shm, device=CudaRef(1, 4000, 0, 0)), is_chunk=True)
    counts = {(edge.target, edge.way): (edge.payloads, edge.chunks, edge.nbytes) for edge in edges}
    assert counts == {
        ("b", "local"): (1, 1, 0),
        ("c", "inline"): (1, 0, 8),
        ("c", "shm"): (1, 1, 2005),
        ("c", "cuda_shm"): (1, 1, 4005),
    }
