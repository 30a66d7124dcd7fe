"""Results that a stage has and cannot send, and errors: their requests fail at once, not when their time is up."""

from __future__ import annotations

import logging
import queue
from typing import Any

import numpy as np
import pytest

from omni_python.pipeline import stage as stages
from omni_python.pipeline.deadlines import DeadlineWatch
from omni_python.pipeline.requests import RequestState
from omni_python.pipeline.stage import Stage
from omni_python.pipeline.stage_spec import StageSpec
from omni_python.proto.errors import LONGEST_MESSAGE, ErrorCode, InvalidArgument, OmniError, Unavailable
from omni_python.proto.messages import WireError
from omni_python.proto.payload import AudioOutput, Payload, TextOutput
from omni_python.proto.timing import StageTiming
from omni_python.scheduling.simple import SimpleScheduler
from tests.pipeline.harness import POOL, Pipeline


class NoWay:
    """A `StageOutlet` that takes no results; all that goes another way is in `told`, in order."""

    def __init__(self, error: Exception) -> None:
        self.told: queue.SimpleQueue[tuple[Any, ...]] = queue.SimpleQueue()
        self._error = error

    def send_result(self, source: str, request_id: str, payload: Payload, timings: tuple[StageTiming, ...]) -> None:
        raise self._error

    def timings(self, request_id: str) -> tuple[StageTiming, ...]:
        return ()

    def began(self, stage: str, request_id: str) -> None: ...
    def gave(self, stage: str, request_id: str) -> None: ...
    def finished(self, stage: str, request_id: str) -> None: ...
    def check_inputs(self, stage: str, request_id: str) -> None: ...
    def closed(self, request_id: str) -> None: ...

    def __getattr__(self, name: str) -> Any:
        return lambda *arguments: self.told.put((name, *arguments))


@pytest.mark.parametrize(
    ("error", "code"),
    [(Unavailable("no slot came free"), ErrorCode.UNAVAILABLE), (ValueError("a bug"), ErrorCode.INTERNAL)],
)
def test_a_result_that_cannot_be_sent_is_told_of_as_a_failure_once(
    error: Exception, code: ErrorCode, caplog: pytest.LogCaptureFixture
) -> None:
    outlet: Any = NoWay(error)
    scheduler = SimpleScheduler(lambda payload: payload)
    stage = Stage(StageSpec("c", terminal=True), scheduler, outlet, DeadlineWatch(lambda *_: None))
    stage.start()
    with caplog.at_level(logging.WARNING):
        stage.on_payload("1", "b", TextOutput("x"))
        name, source, request_id, told = outlet.told.get(timeout=10)
        stage.stop()
    assert (name, source, request_id) == ("send_failure", "c", "1")
    assert OmniError.of(told).code is code and str(error) in str(told)
    assert outlet.told.empty()
    assert str(error) in caplog.text
    assert stage.stats() == {"requests": 0, "fan_in": 0, "waiting": 0, "running": 0}
    assert dict(stage.counts.errors) == {code: 1}


def result_of(pipeline: Pipeline, stage: str, result: Payload) -> None:
    """Let a stage's scheduler give this, whatever it gets."""
    scheduler = pipeline.processes[stage].stages[stage].scheduler
    assert isinstance(scheduler, SimpleScheduler)
    scheduler._compute_one = lambda payload, token: result


@pytest.mark.parametrize("stage", ["b", "c"])
def test_a_result_that_cannot_be_encoded(line: Pipeline, stage: str) -> None:
    unknown: Any = object()
    result_of(line, stage, TextOutput(unknown))
    with pytest.raises(OmniError, match="object"):
        line.submit()[1].wait()
    line.wait_empty()
    assert line.coordinator.finished[RequestState.FAILED] == 1


def test_a_result_for_which_there_is_no_memory(line: Pipeline, monkeypatch: pytest.MonkeyPatch) -> None:
    """The pool is full of another request's, and so is what there may be beside it."""
    speech = AudioOutput(np.zeros(POOL // 4, np.float32), 24_000)
    result_of(line, "c", speech)
    carrier = line.processes["c"]._carrier
    line.submit()[1].wait()
    coordinator = line.processes["c"]._membership.coordinator
    held = [carrier.pack(speech, [coordinator]) for _ in range(2)]
    relay = carrier._relays["shm"]
    room = relay._room
    monkeypatch.setattr(relay, "_room", lambda nbytes, request_id, timeout: room(nbytes, request_id, 0.0))
    with pytest.raises(Unavailable, match="no relay slot of"):
        line.submit()[1].wait()
    for envelope in held:
        carrier.take_back(envelope, [coordinator])
    line.submit()[1].wait()
    line.wait_empty()


@pytest.mark.parametrize("stage", ["a", "b", "c"])
def test_an_error_whose_text_is_no_unicode(line: Pipeline, stage: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As the name of a file in it that Python has read."""
    monkeypatch.setattr(stages.log, "disabled", True)  # what pytest has caught of it could not be sent on, either

    def fail(*_: Any) -> Payload:
        raise ValueError("no such file: \udcff.wav")

    scheduler = line.processes[stage].stages[stage].scheduler
    assert isinstance(scheduler, SimpleScheduler)
    compute, scheduler._compute_one = scheduler._compute_one, fail
    with pytest.raises(OmniError, match=r"^ValueError: no such file: \\udcff\.wav$"):
        line.submit()[1].wait()
    scheduler._compute_one = compute
    line.submit()[1].wait()
    line.wait_empty()


def test_what_a_client_is_shown_can_be_sent() -> None:
    error = InvalidArgument("\ud800" + "x" * 2 * LONGEST_MESSAGE + "é")
    shown = error.shown
    assert shown.startswith("\\ud800xx") and len(shown) == LONGEST_MESSAGE
    assert WireError.of(error).message == shown == shown.encode().decode()
    assert InvalidArgument("é\U0001f600").shown == "é\U0001f600"
