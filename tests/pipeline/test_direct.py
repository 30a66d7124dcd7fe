"""Answers that the receiving thread sends itself, and what happens where that holds it up."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from omni_python.models.noop.config import NoopForwardPipelineConfig, NoopLinePipelineConfig
from omni_python.pipeline.answer_parts import LastPart
from omni_python.pipeline.direct import HELD_UP, PAUSE, DirectCalls
from omni_python.proto.timing import StageTiming
from omni_python.proto.trace import Trace
from omni_python.relay.put_off import handle
from tests.pipeline.harness import Pipeline, Sink, held_up, request, running
from tests.waiting import wait_until


@dataclass
class Watched(Sink):
    """Tells which thread ends the answer, which may be made to wait there."""

    thread: str = ""
    go: threading.Event = field(default_factory=threading.Event)

    def finish(self, timings: Sequence[StageTiming], trace: Trace | None = None) -> None:
        self.thread = threading.current_thread().name
        assert self.go.wait(20)
        super().finish(timings, trace)


def asked(pipeline: Pipeline, go: bool = True, **sampling: object) -> Watched:
    sink = Watched()
    if go:
        sink.go.set()
    pipeline.coordinator.submit(request(**sampling), sink)
    return sink


def test_a_short_answer_is_sent_where_its_only_part_is_received(line: Pipeline) -> None:
    sink = asked(line)
    sink.wait()
    assert sink.thread == "omni-inbox"
    line.wait_empty()


def test_the_receiving_thread_goes_on_receiving_where_others_are_in_flight(line: Pipeline) -> None:
    asked(line).wait()  # the processes are there, and the next two come to them in order
    with held_up("b"):
        sink = asked(line, go=False)
        other = asked(line)
    wait_until(lambda: sink.thread)
    assert sink.thread == "omni-send"
    other.wait()
    sink.go.set()
    sink.wait()
    line.wait_empty()


def test_what_follows_other_parts_waits_behind_them(tmp_path: Path) -> None:
    with running(NoopForwardPipelineConfig(), tmp_path) as pipeline:
        sink = asked(pipeline, chunks=3)
        sink.wait()
        assert sink.thread == "omni-send"
        pipeline.wait_empty()


def test_a_client_that_does_not_read_holds_up_nobody_for_long(line: Pipeline) -> None:
    asked(line).wait()
    blocked = asked(line, go=False)
    while not blocked.thread:
        time.sleep(0.005)
    others = [asked(line) for _ in range(5)]
    for sink in others:
        sink.wait()
    assert blocked.thread == "omni-inbox"
    assert {sink.thread for sink in others} == {"omni-send"}
    assert blocked.events.qsize() == 1, "its result, and not the end"
    blocked.go.set()
    blocked.wait()
    line.wait_empty()
    asked(line).wait()


def test_a_server_stops_while_an_answer_is_held_up(tmp_path: Path) -> None:
    with running(NoopLinePipelineConfig(), tmp_path) as pipeline:
        blocked = asked(pipeline, go=False)
        while not blocked.thread:
            time.sleep(0.005)
    blocked.go.set()


def test_what_is_received_while_a_server_stops_still_gets_its_answer(tmp_path: Path) -> None:
    """The request is over when the stop begins, and its answer not yet on its way."""
    received, go = threading.Event(), threading.Event()
    with running(NoopForwardPipelineConfig(), tmp_path) as pipeline:
        answers = pipeline.coordinator._answers
        put = answers.put

        def put_late(request_id: str, send: Callable[[], None]) -> None:
            if isinstance(send, LastPart):
                received.set()
                assert go.wait(10)
            put(request_id, send)

        answers.put = put_late  # type: ignore[method-assign]
        sink = asked(pipeline, chunks=3)
        assert received.wait(10)
        threading.Timer(0.3, go.set).start()
    sink.wait(1)


# -- when calls are taken


@dataclass
class Ear:
    """The receiving thread and its stand-ins, one message after the other."""

    now: float = 100.0
    replaced: int = 0

    def __post_init__(self) -> None:
        self.calls = DirectCalls(self._replace, lambda: self.now)

    def _replace(self) -> None:
        self.replaced += 1

    def hear(self, call: Callable[[], object]) -> bool:
        taken: list[bool] = []
        handle(lambda message: taken.append(self.calls.take(call)), None)
        return taken == [True]


def test_only_the_receiving_thread_takes_a_call_and_one_for_a_message() -> None:
    ear = Ear()
    made: list[int] = []

    def handler(message: None) -> None:
        assert ear.calls.take(lambda: made.append(1)) and not ear.calls.take(lambda: made.append(2))
        other = threading.Thread(target=lambda: made.append(3 if ear.calls.take(lambda: made.append(4)) else 5))
        other.start()
        other.join()
        assert made == [5]

    assert not ear.calls.take(lambda: made.append(0))
    handle(handler, None)
    assert made == [5, 1] and not ear.calls.take(lambda: made.append(6))
    assert ear.hear(lambda: made.append(7)) and made == [5, 1, 7]


def test_a_call_that_fails_harms_none_after_it(caplog: pytest.LogCaptureFixture) -> None:
    ear = Ear()
    assert ear.hear(lambda: 1 / 0)
    assert "could not be sent" in caplog.text and "ZeroDivisionError" in caplog.text
    assert ear.hear(lambda: None)


def test_calls_pause_while_one_is_held_up_and_for_a_while() -> None:
    ear = Ear()
    go, begun = threading.Event(), threading.Event()

    def block() -> None:
        begun.set()
        assert go.wait(10)

    thread = threading.Thread(target=ear.hear, args=(block,))
    thread.start()
    assert begun.wait(10)
    ear.calls.relieve()
    assert ear.replaced == 0
    ear.now += HELD_UP
    ear.calls.relieve()
    ear.calls.relieve()
    assert ear.replaced == 1
    ear.now += PAUSE
    assert not ear.hear(lambda: None), "one is still held up"
    go.set()
    thread.join()
    assert ear.hear(lambda: None)


def test_calls_pause_after_one_was_held_up() -> None:
    ear = Ear()

    def take_long() -> None:
        ear.now += HELD_UP
        ear.calls.relieve()

    assert ear.hear(take_long) and ear.replaced == 1
    assert not ear.hear(lambda: None)
    ear.now += PAUSE
    assert ear.hear(lambda: None) and ear.replaced == 1


def test_none_is_made_on_a_receiving_thread_that_is_waited_for() -> None:
    """It is closed between the moment when the call was taken and that when it would be made."""
    ear = Ear()
    go, made = threading.Event(), threading.Event()

    def block() -> None:
        assert go.wait(10)
        made.set()

    def handler(message: None) -> None:
        assert ear.calls.take(block)
        ear.calls.close()

    handle(handler, None)
    assert not made.is_set() and not ear.hear(lambda: None)
    go.set()
    assert made.wait(10), "it is made on another thread"
    ear.now += HELD_UP
    ear.calls.relieve()
    assert ear.replaced == 0


def test_another_thread_goes_on_where_one_is_made_when_none_may_be_made_any_more() -> None:
    ear = Ear()
    assert ear.hear(ear.calls.close) and ear.replaced == 1
    assert not ear.hear(lambda: None)
