"""Whatever a stage does, its spans account for all of its time."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from omni_python.proto.trace import StageRecord
from omni_python.scheduling import work_trace
from omni_python.scheduling.work_trace import MAX_SPANS, WorkTrace


@dataclass
class Clock:
    """In place of the `time` module: seconds go by when the test says so."""

    now: float = 1000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(work_trace, "time", clock)
    return clock


def kinds(record: StageRecord) -> list[tuple[str, float, float]]:
    return [(span.kind, round(span.start, 6), round(span.end, 6)) for span in record.spans]


def test_before_a_step_is_waiting_until_the_last_input_and_queueing_from_there(clock: Clock) -> None:
    trace = WorkTrace("talker")
    trace.arrived("thinker", stream=True)
    clock.now = 1001.0
    trace.arrived("thinker", stream=True)
    clock.now = 1003.0
    trace.computed(1002.0, 1003.0, 4)
    clock.now = 1003.25
    trace.sent("code2wav", stream=True)
    clock.now = 1003.5
    trace.arrived("thinker", stream=False)
    clock.now = 1005.0
    trace.computed(1004.0, 1005.0, 2)
    clock.now = 1005.5
    trace.done(result=True)
    clock.now = 1007.0
    trace.done()
    trace.computed(1006.0, 1007.0, 1)  # too late to count
    record = trace.record()
    assert kinds(record) == [
        ("wait", 1000.0, 1001.0),
        ("queue", 1001.0, 1002.0),
        ("compute", 1002.0, 1003.0),
        ("wait", 1003.0, 1003.5),
        ("queue", 1003.5, 1004.0),
        ("compute", 1004.0, 1005.0),
        ("queue", 1005.0, 1005.5),
    ]
    assert (record.start, record.first, record.end) == (1000.0, 1003.25, 1005.5)
    assert [span.batch for span in record.spans if span.kind == "compute"] == [4, 2]
    assert [(way.stream, way.count, way.first, way.last) for way in record.received] == [
        (True, 2, 1000.0, 1001.0),
        (False, 1, 1003.5, 1003.5),
    ]


def test_a_scheduler_that_does_not_tell_computes_from_its_last_input_on(clock: Clock) -> None:
    trace = WorkTrace("other")
    trace.arrived("a", stream=False)
    clock.now += 1
    trace.arrived("b", stream=False)
    clock.now += 2
    trace.done(result=True)
    assert [kind for kind, *_ in kinds(trace.record())] == ["wait", "compute"]


def test_what_was_dropped_in_the_queue_was_not_computed(clock: Clock) -> None:
    trace = WorkTrace("full")
    trace.arrived("a", stream=False)
    clock.now += 2
    trace.done()
    assert [kind for kind, *_ in kinds(trace.record())] == ["queue"]


def test_a_step_that_sends_before_it_ends_is_computing_until_then(clock: Clock) -> None:
    trace = WorkTrace("decode")
    trace.arrived("thinker", stream=False)
    clock.now += 1
    trace.begin()
    clock.now += 3
    trace.done(result=True)  # the result is routed while the step goes on
    trace.end()
    assert kinds(trace.record()) == [("queue", 1000.0, 1001.0), ("compute", 1001.0, 1004.0)]


Step = tuple[str, float, float]
STEPS = st.lists(
    st.tuples(st.sampled_from(["input", "compute", "take"]), st.floats(0, 0.01), st.floats(1e-5, 0.05)), max_size=800
)


@given(STEPS, st.booleans())
@settings(max_examples=30)
def test_spans_cover_everything_and_are_bounded(steps: list[Step], result: bool) -> None:
    clock = Clock()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(work_trace, "time", clock)
        trace = WorkTrace("any")
        trace.arrived("a", stream=True)
        busy = 0.0
        for kind, pause, length in steps:
            clock.now += pause
            start = clock.now
            if kind == "input":
                trace.arrived("a", stream=True)
                continue
            if kind == "take":
                trace.begin()
            clock.now += length
            if kind == "compute":
                trace.computed(start, clock.now, 1)
            else:
                trace.end()
                if clock.now - start < work_trace.BRIEF:
                    continue
            busy += clock.now - start
        clock.now += 0.001
        trace.done(result)
    record = trace.record()
    assert len(record.spans) <= MAX_SPANS + 2  # and what comes after the last step
    at = record.start
    for span in record.spans:
        assert span.start == at and span.end > span.start
        at = span.end
    assert at == record.end == clock.now
    if busy:
        assert sum(span.busy for span in record.spans) == pytest.approx(busy, abs=1e-6)
