"""A request's whole way through coordinator and stages, without Triton."""

from __future__ import annotations

import json
import random
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from omni_python.control import outlet
from omni_python.models.noop.config import NoopForwardPipelineConfig, NoopLinePipelineConfig, NoopStreamPipelineConfig
from omni_python.pipeline.requests import RequestState
from omni_python.pipeline.spec import Limits
from omni_python.proto.errors import Cancelled, InvalidArgument, OmniError, Unavailable
from omni_python.proto.payload import Payload, TextOutput
from tests.pipeline.harness import Pipeline, Sink, held_up, request, running
from tests.waiting import wait_until


def answer(sink: Sink) -> dict[str, int]:
    _, results = sink.wait()
    [output] = results.values()
    assert isinstance(output, TextOutput)
    return json.loads(output.text)


@pytest.mark.parametrize("nbytes", [0, 1, 16 << 10, (16 << 10) + 1, 1 << 20, 4 << 20, 9 << 20])
def test_a_payload_of_any_size_goes_through(line: Pipeline, nbytes: int) -> None:
    _, sink = line.submit(nbytes=nbytes)
    assert answer(sink) == {"nbytes": nbytes, "last": (nbytes - 1) % 256 if nbytes else 0}
    line.wait_empty()
    assert line.coordinator.finished[RequestState.COMPLETED] == 1


def test_many_at_once(line: Pipeline) -> None:
    sizes = [random.choice((0, 100, 50_000, 700_000)) for _ in range(150)]
    sinks = [line.submit(nbytes=size)[1] for size in sizes]
    assert [answer(sink)["nbytes"] for sink in sinks] == sizes
    line.wait_empty()


@pytest.mark.parametrize("stage", ["a", "b", "c"])
def test_a_failing_stage_fails_the_request_and_no_other(line: Pipeline, stage: str) -> None:
    _, failing = line.submit(fail_stage=stage)
    _, other = line.submit(nbytes=10)
    with pytest.raises(OmniError, match=f"NoopFailure: stage {stage} fails, as asked"):
        failing.wait()
    assert answer(other)["nbytes"] == 10
    line.wait_empty()


def test_bad_parameters_are_named(line: Pipeline) -> None:
    _, sink = line.submit(bytes=3)
    with pytest.raises(InvalidArgument, match="unknown field `bytes`; valid keys: nbytes, chunks"):
        sink.wait()


def test_streams_keep_order_and_count(directory: Path) -> None:
    with running(NoopStreamPipelineConfig(), directory) as pipeline:
        sinks = [pipeline.submit(chunks=500, chunk_bytes=size)[1] for size in (0, 100, 20_000, 70_000)]
        assert [answer(sink) for sink in sinks] == [{"chunks": 500}] * 4
        pipeline.wait_empty()


def test_chunks_reach_the_client_in_fair_turns(directory: Path) -> None:
    with running(NoopForwardPipelineConfig(), directory) as pipeline:
        order: list[int] = []

        class Turn(Sink):
            def chunk(self, payload: Payload) -> None:
                assert isinstance(payload, TextOutput)
                order.extend([id(self)] * (len(payload.text) // 10))

        sinks = [Turn() for _ in range(4)]
        for sink in sinks:
            pipeline.coordinator.submit(request(chunks=300, chunk_bytes=10), sink)
        for sink in sinks:
            sink.wait()
        firsts = [order.index(id(sink)) for sink in sinks]
        assert max(firsts) < 900, "a stream's first chunk came only after all others had ended"
        assert [order.count(id(sink)) for sink in sinks] == [300] * 4
        pipeline.wait_empty()


def test_chunks_that_are_not_read_do_not_fill_the_way(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outlet, "PATIENCE", 20.0)
    with running(NoopForwardPipelineConfig(), directory) as pipeline:
        source, sink_stage = pipeline.processes["a"], pipeline.processes["b"].stages["b"]
        held_up, go = threading.Event(), threading.Event()
        take = sink_stage.on_chunk

        def take_slowly(*args: Any) -> None:
            held_up.set()
            assert go.wait(20)
            take(*args)

        monkeypatch.setattr(sink_stage, "on_chunk", take_slowly)
        chunks = 3000
        _, sink = pipeline.submit(chunks=chunks, chunk_bytes=4096)
        try:
            assert held_up.wait(10)
            before = -1
            while before != (made := source.carried.get("inline", 0)):
                before = made
                time.sleep(0.1)
            assert made < 200, "this many chunks are ahead of the first one of any other request"
        finally:
            go.set()
        parts, _ = sink.wait()
        assert sum(len(part.text) for part in parts if isinstance(part, TextOutput)) == 4096 * chunks
        pipeline.wait_empty()


def test_a_process_that_reads_nothing_is_waited_for_once(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with running(NoopForwardPipelineConfig(), directory) as pipeline:
        source, sink_stage = pipeline.processes["a"], pipeline.processes["b"].stages["b"]
        go = threading.Event()
        take = sink_stage.on_chunk

        def take_slowly(*args: Any) -> None:
            assert go.wait(20)
            take(*args)

        monkeypatch.setattr(sink_stage, "on_chunk", take_slowly)
        _, sink = pipeline.submit(chunks=1000, chunk_bytes=4096)
        end = time.monotonic() + 10
        while source.stages["a"].stats()["requests"] and time.monotonic() < end:
            time.sleep(0.01)
        is_free = source.stages["a"].stats()["requests"] == 0
        go.set()
        assert is_free, "the source waits on and on"
        parts, _ = sink.wait()
        assert sum(len(part.text) for part in parts if isinstance(part, TextOutput)) == 4096 * 1000
        pipeline.wait_empty()


def test_a_client_that_leaves_ends_its_request_everywhere(line: Pipeline) -> None:
    with held_up("b"):
        _, sink = line.submit(nbytes=1 << 20)
        wait_until(lambda: line.processes["b"].stages["b"].stats()["running"] == 1)
        sink.cancelled = True
        with pytest.raises(Cancelled):
            sink.wait()
    line.wait_empty()
    assert line.coordinator.finished[RequestState.ABORTED] == 1


def test_random_aborts_leave_nothing_behind(line: Pipeline) -> None:
    rng = random.Random()
    sinks = []
    for _ in range(150):
        request_id, sink = line.submit(nbytes=rng.choice((0, 300_000)), delay=rng.choice((0, 0.002)))
        sinks.append(sink)
        threading.Timer(rng.random() * 0.02, line.coordinator.abort, (request_id,)).start()
        time.sleep(0.002)
    ends = []
    for sink in sinks:
        try:
            ends.append(answer(sink)["nbytes"] >= 0)
        except Cancelled:
            ends.append(False)
    assert len(ends) == 150
    line.wait_empty()


def test_missing_processes_are_named(directory: Path) -> None:
    with running(NoopLinePipelineConfig(), directory, Limits(grace=0.2)) as pipeline:
        wait_until(lambda: pipeline.coordinator._registry.can_serve("abc"))
        _, sink = pipeline.submit()
        answer(sink)
        pipeline.processes["b"].stop()
        pipeline.coordinator._registry.remove(pipeline.processes["b"]._endpoint.epoch)
        _, sink = pipeline.submit()
        with pytest.raises(Unavailable, match="noop_line that are not running: b"):
            sink.wait()
        pipeline.processes.pop("b")


def test_nothing_is_left_in_the_directory(directory: Path) -> None:
    private = directory / "private"
    private.mkdir(mode=0o700)
    with running(NoopLinePipelineConfig(), private) as pipeline:
        answer(pipeline.submit(nbytes=100)[1])
        wait_until(lambda: len(list(private.iterdir())) == 5)  # the sign of life may come after the first answer
    assert not private.exists()


def test_the_end_tells_when_each_stage_worked(line: Pipeline) -> None:
    _, sink = line.submit(delay=0.2, delay_stage="b")
    sink.wait()
    line.wait_empty()
    times = sink.timings
    assert list(times) == ["a", "b", "c"]
    assert 0 <= times["a"].start <= times["a"].end <= times["b"].start < times["b"].end <= times["c"].start
    assert times["c"].end >= times["c"].start and times["b"].end - times["b"].start >= 0.2
