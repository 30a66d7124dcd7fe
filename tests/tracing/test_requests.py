"""Traces of real pipelines in one process: sockets, shared memory, threads; only Triton is not there."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from omni_python.models.noop.config import NoopForwardPipelineConfig, NoopLinePipelineConfig
from omni_python.pipeline.tracing.store import TraceStore
from omni_python.proto.errors import NotFound, OmniError
from omni_python.proto.trace import CLIENT, ORCHESTRATOR, Lane, Trace
from omni_python.proto.trace_context import TraceContext, TraceWish
from tests.pipeline.harness import Pipeline, Sink, request, running
from tests.tracing.walk import check_lanes, unexplained

ASKED = TraceWish(True)


@pytest.fixture(scope="module")
def line(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pipeline]:
    with running(NoopLinePipelineConfig(), tmp_path_factory.mktemp("line")) as pipeline:
        yield pipeline


@pytest.fixture(autouse=True)
def fresh(line: Pipeline, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No traces of another test, and nothing left behind. Stages may tell late, if the machine holds them up."""
    monkeypatch.setattr("omni_python.pipeline.tracing.request.PATIENCE", 20.0)
    line.coordinator.traces = TraceStore()
    yield
    line.wait_empty()


def ask(pipeline: Pipeline, wish: TraceWish | None = None, **sampling: Any) -> tuple[str, Sink]:
    sink = Sink()
    return pipeline.coordinator.submit(request(**sampling), sink, wish=wish), sink


UNEXPLAINED = 0.005
"""Seconds at a time that nothing in a trace need account for."""


def some_request(check: Callable[[], Trace]) -> None:
    """One of a few is explained: `check` makes a request. Where the machine holds a thread up, nothing accounts for
    that."""
    for _ in range(5):
        gaps = [gap for gap in unexplained(check()) if gap[1] - gap[0] > UNEXPLAINED]
        if not gaps:
            return
    raise AssertionError(f"not even the fifth request is explained: {gaps}")


def lane(trace: Trace, stage: str) -> Lane:
    return next(lane for lane in trace.lanes if lane.stage == stage)


def settled(store: TraceStore, name: str) -> Trace:
    """The trace once it is there and every stage has told."""
    end = time.monotonic() + 20
    while True:
        try:
            trace = store.find(name)
        except NotFound:
            trace = None
        if (trace is not None and trace.complete) or time.monotonic() > end:
            assert trace is not None, f"{name} has not ended"
            return trace
        time.sleep(0.01)


def test_a_client_that_asks_gets_its_trace_with_the_last_response(line: Pipeline) -> None:
    some_request(lambda: traced(line))


def traced(line: Pipeline) -> Trace:
    """A request's trace, all of which but its gaps is as it should be."""
    request_id, sink = ask(line, ASKED, delay=0.1, nbytes=100_000)
    sink.wait()
    trace = sink.trace
    assert trace is not None and trace.complete
    assert (trace.id, trace.pipeline, trace.state, trace.error) == (request_id, "noop_line", "completed", "")
    assert [lane.stage for lane in trace.lanes] == [ORCHESTRATOR, "a", "b", "c"]
    ways = {(hop.source, hop.target, hop.stream): hop.count for hop in trace.hops}
    assert ways == {
        (CLIENT, ORCHESTRATOR, False): 1,
        (ORCHESTRATOR, "a", False): 1,
        ("a", "b", False): 1,
        ("b", "c", False): 1,
        ("c", ORCHESTRATOR, False): 1,
        (ORCHESTRATOR, CLIENT, True): 1,
        (ORCHESTRATOR, CLIENT, False): 1,
    }
    check_lanes(trace)
    assert sum(span.busy for span in lane(trace, "b").spans) >= 0.1
    assert trace.seconds >= 0.1 and abs(trace.time - time.time()) < 60
    return trace


def test_a_request_that_says_nothing_is_not_traced(line: Pipeline) -> None:
    _, sink = ask(line)
    sink.wait()
    assert sink.trace is None
    with pytest.raises(NotFound, match="no request that was traced has ended yet"):
        line.coordinator.traces.find("")


def test_a_stream_tells_of_its_first_and_last_chunk(tmp_path: Path) -> None:
    with running(NoopForwardPipelineConfig(), tmp_path) as pipeline:
        some_request(lambda: streamed(pipeline))
        pipeline.wait_empty()


def streamed(pipeline: Pipeline) -> Trace:
    """As `traced`, of a request that streams."""
    _, sink = ask(pipeline, ASKED, chunks=300, chunk_bytes=100)
    sent, _ = sink.wait()
    trace = sink.trace
    assert trace is not None and trace.complete
    check_lanes(trace)
    streams = {(hop.source, hop.target): hop for hop in trace.hops if hop.stream}
    assert {way: hop.count for way, hop in streams.items()} == {
        ("a", "b"): 300,
        ("b", ORCHESTRATOR): 300,
        (ORCHESTRATOR, CLIENT): len(sent) + 1,  # the result is a piece of the answer too
    }
    for hop in streams.values():
        if hop.sent is not None and hop.received is not None:
            assert hop.last_sent is not None and hop.last_received is not None
            assert hop.sent < hop.last_sent and hop.received < hop.last_received
    assert lane(trace, "b").first is not None
    return trace


def test_a_failed_request_has_a_trace_that_ends_with_the_failure(line: Pipeline) -> None:
    request_id, sink = ask(line, ASKED, fail_stage="b", delay=0.02)
    with pytest.raises(OmniError, match="stage b fails, as asked"):
        sink.wait()
    trace = settled(line.coordinator.traces, request_id)
    assert trace.state == "failed" and "stage b fails, as asked" in trace.error
    assert [lane.stage for lane in trace.lanes] == [ORCHESTRATOR, "a", "b"]
    check_lanes(trace)


def test_an_aborted_request_has_a_trace_too(line: Pipeline) -> None:
    request_id, sink = ask(line, ASKED, delay=0.3)
    time.sleep(0.1)
    line.coordinator.abort(request_id)
    with pytest.raises(OmniError):
        sink.wait()
    trace = settled(line.coordinator.traces, request_id)
    assert trace.state == "aborted" and {lane.stage for lane in trace.lanes} == {ORCHESTRATOR, "a", "b"}
    check_lanes(trace)


def test_the_callers_context_decides_and_is_kept(line: Pipeline) -> None:
    line.coordinator.traces = store = TraceStore(sample=1.0)
    trace_id, span_id = "ab" * 16, "cd" * 8
    request_id, sink = ask(line, TraceWish(None, TraceContext(trace_id, span_id, sampled=True)))
    sink.wait()
    assert sink.trace is None, "a client that did not ask is not sent the trace"
    assert sink.trace_id == trace_id
    trace = settled(store, trace_id)
    assert (trace.id, trace.trace_id, trace.parent_id) == (request_id, trace_id, span_id)
    assert store.find(request_id).trace_id == store.find("").trace_id == trace_id
    _, sink = ask(line, TraceWish(None, TraceContext("ef" * 16, span_id, sampled=False)))
    sink.wait()
    assert sink.trace_id == ""
    _, sink = ask(line, TraceWish(False))
    sink.wait()
    assert sink.trace_id == ""
    with pytest.raises(NotFound, match=f"there is no trace '{'ef' * 16}'; of 1 traces the newest are {request_id}"):
        store.find("ef" * 16)


def test_a_share_is_traced_by_chance_and_the_last_ones_are_kept(line: Pipeline) -> None:
    line.coordinator.traces = store = TraceStore(sample=1.0, keep=3)
    ids = []
    for _ in range(6):
        request_id, sink = ask(line)
        sink.wait()
        ids.append(request_id)
    assert [settled(store, request_id).id for request_id in ids[3:]] == ids[3:]
    for request_id in ids[:3]:
        with pytest.raises(NotFound):
            store.find(request_id)
    wanted = sum(TraceStore(sample=0.2).wants(None) for _ in range(5000))
    assert 830 < wanted < 1170  # six standard deviations of a binomial of 5000 at 0.2
    assert not any(TraceStore(sample=0.0).wants(None) for _ in range(1000))
