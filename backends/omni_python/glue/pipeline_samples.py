"""A pipeline's figures, as its orchestrator keeps them, under the names of its metrics."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from omni_python.glue import metric_names as names
from omni_python.glue.metric_names import Sample
from omni_python.pipeline.coordinator import Coordinator
from omni_python.pipeline.stats.answers import AnswerStats
from omni_python.pipeline.stats.edges import EdgeStats
from omni_python.proto.errors import ErrorCode

ORCHESTRATOR = "orchestrator"
"""The orchestrator's name among the processes."""

WHOLE_PIPELINE = "0"
"""The replica of what has none."""


def held_by_pipeline(coordinator: Coordinator, refused: Counter[ErrorCode]) -> Iterator[Sample]:
    """What the coordinator holds, and the requests that it has ended or refused."""
    held = coordinator.stats()
    yield names.IN_FLIGHT(held["requests"])
    yield names.QUEUED(held["queued"])
    yield names.SLOTS(held["relay_slots"], ORCHESTRATOR, WHOLE_PIPELINE, "")
    for load in coordinator.replica_loads():
        yield names.REPLICA_REQUESTS(load.requests, load.process, str(load.replica))
    for state, count in coordinator.finished.items():
        yield names.REQUESTS(count, state.value)
    for code in (ErrorCode.UNAVAILABLE, ErrorCode.INVALID_ARGUMENT, *refused):
        yield names.REFUSED(refused[code], code.name)


def totals_of_pipeline(coordinator: Coordinator, answers: AnswerStats) -> Iterator[Sample]:
    """What clients got, and when; and what went to the entry stage."""
    yield from totals_of_edges(coordinator.edges, WHOLE_PIPELINE)
    yield names.FIRST_TEXT(answers.first_text)
    yield names.FIRST_AUDIO(answers.first_audio)
    yield names.INTERVAL(answers.text_intervals, "text")
    yield names.INTERVAL(answers.audio_intervals, "audio")
    yield names.REAL_TIME_FACTOR(answers.real_time_factor)
    yield names.UNDERRUN(answers.silence)
    yield names.STREAMS(answers.continuous, "continuous")
    yield names.STREAMS(answers.broken, "broken")
    for end, durations in answers.durations.items():
        yield names.DURATION(durations, end)
    for end, totals in answers.totals.items():
        yield names.INPUT_TOKENS(totals.input_tokens, end)
        yield names.OUTPUT_TOKENS(totals.output_tokens, end)
        yield names.FRAMES(totals.audio_frames, end)
        yield names.SAMPLES(totals.audio_samples, end)
        yield names.AUDIO(totals.audio_seconds, end)


def totals_of_edges(edges: EdgeStats, replica: str) -> Iterator[Sample]:
    for edge in edges:
        labels = (edge.source, edge.target, replica, edge.way)
        yield names.EDGE_PAYLOADS(edge.payloads, *labels)
        yield names.EDGE_CHUNKS(edge.chunks, *labels)
        yield names.EDGE_BYTES(edge.nbytes, *labels)
