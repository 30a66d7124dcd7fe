"""Deadlines, admission and partial answers, without Triton."""

from __future__ import annotations

import contextlib
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from omni_python.config.schema import PipelineConfig, StageConfig
from omni_python.control.liveness import read_life_signs
from omni_python.models.noop.config import NoopForwardPipelineConfig, NoopLinePipelineConfig
from omni_python.models.noop.payloads import Block, NoopParams
from omni_python.pipeline import watcher
from omni_python.pipeline.deadlines import DeadlineWatch
from omni_python.pipeline.requests import RequestState
from omni_python.pipeline.spec import Limits
from omni_python.proto.errors import DeadlineExceeded, InvalidArgument, OmniError, Unavailable
from omni_python.proto.messages import DrainMessage, Envelope, RecordOrder, SubmitMessage, new_epoch
from omni_python.proto.payload import Payload, TextOutput
from omni_python.relay.put_off import handle
from omni_python.scheduling.simple import SimpleScheduler
from tests.pipeline.harness import Pipeline, Sink, held_up, request, running
from tests.waiting import wait_until

STAGES = "omni_python.models.noop.stages"


class TwoAnswersPipelineConfig(PipelineConfig):
    """`a` feeds the terminal stages `text` and, by `mid`, `speech`."""

    name: str | None = "two_answers"
    model_path: str = "none"
    stages: list[StageConfig] = [
        StageConfig(name="a", process="a", factory=f"{STAGES}.create_source", next=["text", "mid"]),
        StageConfig(
            name="text", process="a", factory=f"{STAGES}.create_sink", factory_args={"stage": "text"}, terminal=True
        ),
        StageConfig(
            name="mid", process="s", factory=f"{STAGES}.create_pass", factory_args={"stage": "mid"}, next="speech"
        ),
        StageConfig(
            name="speech", process="s", factory=f"{STAGES}.create_sink", factory_args={"stage": "speech"}, terminal=True
        ),
    ]


def test_a_message_that_is_too_long_fails_its_request_and_holds_nothing(line: Pipeline) -> None:
    """Its payload is in a slot by then."""
    sink = Sink()
    given = request(nbytes=8, padding="x" * (1 << 20))
    line.coordinator.submit(given, sink, None, RecordOrder("one", ("a",), "x" * (65 << 20)))
    with pytest.raises(InvalidArgument, match="a message of 6[0-9]{7} bytes; 67108864 is the most"):
        sink.wait()
    line.wait_empty()


@pytest.mark.parametrize("stage", ["a", "b", "c"])
def test_an_overdue_request_ends_in_the_stage_that_has_it(
    line: Pipeline, stage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watcher, "REPORT_TIME", 20)
    line.submit()[1].wait()  # the processes are there
    start = time.monotonic()
    with held_up(stage):
        _, sink = line.submit(deadline=1.0)
        with pytest.raises(DeadlineExceeded, match=f"^deadline exceeded in stage {stage}$"):
            sink.wait()
        assert time.monotonic() - start >= 1.0
    line.wait_empty()
    assert line.coordinator.finished[RequestState.FAILED] == 1


def test_work_that_waits_past_its_deadline_is_never_begun(line: Pipeline, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second request waits behind the first one in stage b, and its time is up before b is free."""
    monkeypatch.setattr(watcher, "REPORT_TIME", 20)
    with held_up("b"):
        _, first = line.submit()
        wait_until(lambda: line.processes["b"].stages["b"].stats()["running"] == 1)
        _, second = line.submit(deadline=1.0)
        with pytest.raises(DeadlineExceeded, match="in stage b"):
            second.wait()
    first.wait()
    line.wait_empty()
    assert line.processes["c"].stages["c"].accepted == 1


def test_a_pipeline_s_deadline_is_the_longest(directory: Path) -> None:
    with running(NoopLinePipelineConfig(), directory, Limits(deadline=0.1)) as pipeline:
        _, sink = pipeline.submit(deadline=60, delay=0.5)
        with pytest.raises(DeadlineExceeded):
            sink.wait(timeout=5)


def test_a_request_whose_time_is_up_while_it_waits_for_its_turn(directory: Path) -> None:
    with running(NoopLinePipelineConfig(), directory, Limits(max_in_flight=1)) as pipeline:
        with held_up("b"):
            _, first = pipeline.submit()
            _, second = pipeline.submit(deadline=0.15)
            with pytest.raises(DeadlineExceeded, match="before a stage took the request"):
                second.wait()
        first.wait()
        pipeline.wait_empty()


def test_deadlines_fire_in_order_and_not_when_discarded() -> None:
    fired: list[str] = []
    done = threading.Event()

    def expired(stage: str, request_id: str) -> None:
        fired.append(request_id)
        if request_id == "last":
            done.set()

    watch = DeadlineWatch(expired)
    now = time.monotonic()
    watch.add("s", "last", now + 0.3)
    for n in range(1000):
        watch.add("s", f"gone {n}", now + 0.2)
        watch.discard("s", f"gone {n}")
    watch.add("s", "first", now + 0.1)
    watch.add("s", "never", float("inf"))
    watch.start()
    assert done.wait(5)
    assert fired == ["first", "last"]
    assert len(watch) == 0 and len(watch._heap) < 200
    watch.stop()


def test_admission_is_bounded_and_says_its_numbers(directory: Path) -> None:
    limits = Limits(max_in_flight=2, max_queued=3)
    with running(NoopLinePipelineConfig(), directory, limits) as pipeline:
        with held_up("b"):
            sinks = [pipeline.submit()[1] for _ in range(5)]
            assert pipeline.coordinator.stats()["queued"] == 3
            with pytest.raises(Unavailable, match="2 requests are in flight and 3 are waiting; .* limits are 2 and 3"):
                pipeline.submit()
            with pytest.raises(Unavailable, match="2 requests are in flight"):
                pipeline.coordinator.check_room()
        for sink in sinks:
            sink.wait()
        pipeline.wait_empty()
        pipeline.submit()[1].wait()
        assert pipeline.coordinator.finished[RequestState.COMPLETED] == 6


def test_requests_that_would_be_late_are_refused_once_others_were(line: Pipeline) -> None:
    """Of 20 at once, each of which works for 0.3 s and has three, ten or so are served."""
    sinks = [line.submit(deadline=3.0, delay=0.3)[1] for _ in range(20)]
    for sink in sinks:
        with contextlib.suppress(DeadlineExceeded):
            sink.wait()
    assert line.coordinator.finished[RequestState.COMPLETED] >= 3
    assert line.coordinator.finished[RequestState.FAILED] >= 3
    admitted = []
    with pytest.raises(Unavailable, match="at the present pace one more would take about .* its deadline of 3 s"):
        for _ in range(20):
            admitted.append(line.submit(deadline=3.0, delay=0.3)[1])
    for sink in admitted:
        with contextlib.suppress(DeadlineExceeded):
            sink.wait()
    line.submit(deadline=20)[1].wait()


def test_a_queued_request_can_be_aborted(directory: Path) -> None:
    with running(NoopLinePipelineConfig(), directory, Limits(max_in_flight=1)) as pipeline:
        with held_up("b"):
            _, first = pipeline.submit()
            second_id, second = pipeline.submit()
            _, third = pipeline.submit()
            pipeline.coordinator.abort(second_id)
            with pytest.raises(OmniError, match="cancelled"):
                second.wait()
        first.wait()
        third.wait()
        pipeline.wait_empty()


def test_draining_refuses_new_requests_and_lets_running_ones_end(line: Pipeline, directory: Path) -> None:
    with held_up("b"):
        _, running_one = line.submit()
        process = line.processes["a"]
        process._endpoint.send(0, DrainMessage(0))
        wait_until(lambda: any(found.sign.draining for found in read_life_signs(directory).values()))
        assert read_life_signs(directory)["noop_line"].sign.requests == 1
        with pytest.raises(Unavailable, match="shutting down"):
            line.submit()
    running_one.wait()
    wait_until(lambda: read_life_signs(directory)["noop_line"].sign.requests == 0)


# -- partial answers


def results(sink: Sink) -> tuple[dict[str, Payload], OmniError | None]:
    """What came, and the error at the end."""
    found: dict[str, Payload] = {}
    while True:
        kind, value = sink.events.get(timeout=10)
        match kind:
            case "fail":
                return found, value
            case "finish":
                return found, None
            case stage:
                found[stage] = value


@pytest.mark.parametrize("failing", ["mid", "speech"])
@pytest.mark.parametrize("slow", ["text", "mid"])
def test_an_answer_that_does_not_depend_on_what_failed_is_finished(directory: Path, failing: str, slow: str) -> None:
    with running(TwoAnswersPipelineConfig(), directory) as pipeline:
        _, sink = pipeline.submit(nbytes=5, fail_stage=failing, delay=0.2, delay_stage=slow)
        found, error = results(sink)
        assert isinstance(found["text"], TextOutput) and found["text"].text == '{"nbytes":5,"last":4}'
        assert "speech" not in found
        assert str(error) == f"NoopFailure: stage {failing} fails, as asked"
        pipeline.wait_empty()
        assert pipeline.coordinator.finished[RequestState.FAILED] == 1


def test_a_failure_that_all_answers_depend_on_ends_the_request_at_once(directory: Path) -> None:
    with running(TwoAnswersPipelineConfig(), directory) as pipeline:
        found, error = results(pipeline.submit(fail_stage="a")[1])
        assert found == {} and "stage a fails" in str(error)
        pipeline.wait_empty()


def test_what_is_not_streamed_fails_at_once_as_a_whole(directory: Path) -> None:
    with running(TwoAnswersPipelineConfig(), directory) as pipeline:
        asked = request(fail_stage="mid")
        asked.stream = False
        sink = Sink()
        with held_up("text"):
            pipeline.coordinator.submit(asked, sink)
            found, error = results(sink)
        assert found == {} and "stage mid fails" in str(error)
        pipeline.wait_empty()


def test_a_target_that_is_not_there_fails_alone(directory: Path) -> None:
    """As when its process has died and the coordinator does not know yet: the source cannot send, and goes on."""
    with running(TwoAnswersPipelineConfig(), directory) as pipeline:
        pipeline.submit()[1].wait()
        speech = pipeline.processes["s"]._endpoint.epoch
        pipeline.processes["a"]._endpoint.forget(speech)
        found, error = results(pipeline.submit(nbytes=3, delay=0.2, delay_stage="text")[1])
        assert list(found) == ["text"]
        assert isinstance(error, Unavailable) and "gone" in str(error)
        pipeline.wait_empty()


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("completes", [True, False])
def test_a_process_that_has_done_its_part_may_die(directory: Path, stream: bool, completes: bool) -> None:
    """Where nothing else depends on it the request goes on, and fails, if it does, with what comes after."""
    stages = [
        stage.model_copy(update={"process": "t"}) if stage.name == "text" else stage
        for stage in TwoAnswersPipelineConfig().stages
    ]
    with running(TwoAnswersPipelineConfig().changed(stages=stages), directory) as pipeline:
        is_working, go = threading.Event(), threading.Event()
        scheduler = pipeline.processes["s"].stages["speech"].scheduler
        assert isinstance(scheduler, SimpleScheduler)
        compute = scheduler._compute_one

        def compute_late(*arguments: Any) -> Payload:
            is_working.set()
            assert go.wait(20)
            assert compute is not None
            return compute(*arguments)

        scheduler._compute_one = compute_late
        asked = request(nbytes=5, fail_stage="" if completes else "speech")
        asked.stream = stream
        sink = Sink()
        coordinator = pipeline.coordinator
        record = coordinator._requests.get(coordinator.submit(asked, sink))
        assert record is not None
        try:
            wait_until(lambda: record.completed == {"text"})
            assert is_working.wait(10)
            coordinator._members.lose(pipeline.processes["t"]._endpoint.epoch, "died")
        finally:
            go.set()
        found, error = results(sink)
        assert (sorted(found), str(error)) == (
            (["speech", "text"], "None") if completes else (["text"], "NoopFailure: stage speech fails, as asked")
        )
        pipeline.wait_empty()


# -- fair sharing


class Blocking(Sink):
    """A client that stops reading after its first chunk."""

    def __init__(self) -> None:
        super().__init__()
        self.go = threading.Event()

    def chunk(self, payload: Payload) -> None:
        super().chunk(payload)
        assert self.go.wait(20)


def test_clients_that_do_not_read_hold_up_nobody_else(directory: Path) -> None:
    with running(NoopForwardPipelineConfig(), directory) as pipeline:
        blocked = [Blocking() for _ in range(4)]
        for sink in blocked:
            pipeline.coordinator.submit(request(chunks=50, chunk_bytes=40_000), sink)
        time.sleep(0.2)
        for _ in range(10):
            chunks, _ = pipeline.submit(chunks=50, chunk_bytes=40_000)[1].wait(timeout=5)
            assert len(chunks) == 50
        for sink in blocked:
            sink.go.set()
            assert len(sink.wait()[0]) == 50
        pipeline.wait_empty()


def test_a_request_for_which_nobody_is_there_holds_up_nobody(line: Pipeline) -> None:
    """It waits on another thread, until the process shows that it is there."""
    line.submit()[1].wait()
    registry = line.coordinator._registry
    registry.remove(line.processes["b"]._endpoint.epoch)
    request_id, sink = line.submit()
    waiting = line.coordinator._requests.get(request_id)
    assert waiting is not None and waiting.state is RequestState.PENDING
    sink.wait()
    line.wait_empty()


def test_an_input_that_the_entry_stage_cannot_read_ends_its_request(
    line: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(line.coordinator._carrier, "pack", lambda *_: Envelope("request.Unheard", b"\x90"))
    with pytest.raises(OmniError, match="'request.Unheard' is not known to this process"):
        line.submit()[1].wait()
    line.wait_empty()


def test_what_another_coordinator_submits_is_dropped(line: Pipeline) -> None:
    line.submit()[1].wait()
    stage = line.processes["a"].stages["a"]
    line.processes["a"]._on_message(SubmitMessage(new_epoch(), "foreign-1", "a", Envelope("request.OmniRequest", b"")))
    assert stage.accepted == 1 and not stage.is_open("foreign-1")
    line.wait_empty()


def test_slots_that_a_killed_process_told_of_are_told_of_by_its_successor(line: Pipeline) -> None:
    """Triton keeps the numbers of the dead: each must be written again, those of slots that were being written, too."""
    end = time.monotonic() + 5
    while len(told := line.processes["a"].relay_slots_by_reader()) < 5 and time.monotonic() < end:
        time.sleep(0.01)
    assert told == {"": 0, "a": 0, "b": 0, "c": 0, "orchestrator": 0}


def test_a_request_that_ends_while_a_chunk_of_it_is_received_leaves_nothing(directory: Path) -> None:
    """The scheduler is told of the end before it is given the chunk."""
    with running(NoopForwardPipelineConfig(), directory) as pipeline:
        stage = pipeline.processes["b"].stages["b"]
        chunk = Block(NoopParams(), np.empty(0, np.uint8))

        def receive(message: None) -> None:
            stage.on_chunk("late", "a", 0, chunk)
            expiry = threading.Thread(target=stage.expire, args=("late",))
            expiry.start()
            expiry.join()

        handle(receive, None)
        assert stage.is_over("late")
        _, sink = pipeline.submit(chunks=2)
        sink.wait()
        pipeline.wait_empty()
