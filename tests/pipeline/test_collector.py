"""Results of several terminal stages that come at the same time, on several threads."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from omni_python.pipeline.collector import Collector
from omni_python.pipeline.requests import Request, Requests, RequestState
from omni_python.pipeline.spec import Limits, PipelineSpec
from omni_python.proto.errors import Unavailable
from omni_python.proto.messages import CompleteMessage, StreamMessage, WireError
from omni_python.proto.payload import Payload, TextOutput
from omni_python.relay.base import TransferFailed
from tests.pipeline.harness import Sink

PATIENCE = 0.3
"""Seconds in which another thread can come between, where it is let."""


class Answers:
    """Sends what is put at once; `before_put` is called before the first."""

    def __init__(self) -> None:
        self.before_put: Callable[[], object] = lambda: None

    def put(self, request_id: str, send: Callable[[], None]) -> None:
        before, self.before_put = self.before_put, lambda: None
        before()
        send()

    def put_chunk(self, request_id: str, sink: Sink, payload: Payload) -> None:
        sink.chunk(payload)


class SlowSet(set[str]):
    """`after_add` is called after the first thing was added."""

    def __init__(self, after_add: Callable[[], object]) -> None:
        super().__init__()
        self._after_add = after_add

    def add(self, item: str) -> None:
        super().add(item)
        if len(self) == 1:
            self._after_add()


class Case:
    """A request that stages `text` and `speech`, each in a process of its own, are to answer."""

    def __init__(self) -> None:
        feeders = {"text": frozenset(("a", "text")), "speech": frozenset(("a", "speech"))}
        processes = {"a": ("a",), "t": ("text",), "s": ("speech",)}
        spec = PipelineSpec("two", "a", processes, dict.fromkeys(processes, 1), feeders)
        self.declined: list[object] = []
        self.carrier = SimpleNamespace(
            unpack=lambda epoch, payload: payload,
            decline=lambda epoch, payload: self.declined.append(payload),
            cleanup=lambda *_: None,
        )
        direct = SimpleNamespace(take=lambda answer: False)
        endpoint: Any = SimpleNamespace(epoch=1, carrier=self.carrier, direct=direct)
        self.answers = Answers()
        answers: Any = self.answers
        members: Any = SimpleNamespace(
            registry=SimpleNamespace(release=lambda route: None),
            tell_route=lambda route, message: None,
            dismiss=lambda: None,
        )
        self.requests = Requests(Limits(), lambda trace: None, lambda: None, lambda request: None)
        self.collector = Collector(spec, endpoint, members, self.requests, answers, lambda request: None)
        now, everything = time.monotonic(), frozenset(feeders)
        self.sink = Sink()
        self.request = Request("1", self.sink, everything, frozenset(processes), now, now + 60, None, True, None)
        self.requests.admit(self.request, 60)

    def chunk(self, stage: str) -> None:
        payload: Any = TextOutput(stage)
        self.collector.take_chunk(StreamMessage(2, "1", stage, payload))

    def result(self, stage: str) -> None:
        payload: Any = TextOutput(stage)
        self.collector.take_result(CompleteMessage(2, "1", stage, payload))

    def failure(self, stage: str) -> None:
        error = WireError.of(Unavailable(f"{stage} is gone"))
        self.collector.take_result(CompleteMessage(2, "1", stage, error=error))

    def end(self) -> None:
        self.collector.end(self.request, RequestState.FAILED, Unavailable("the time is up"))

    def came(self) -> list[str]:
        """What has come to the client."""
        kinds = []
        while not self.sink.events.empty():
            kinds.append(self.sink.events.get()[0])
        return kinds


@pytest.mark.parametrize("moment", ["noted", "put"])
@pytest.mark.parametrize(
    ("other", "expected"),
    [
        (lambda case: case.result("speech"), ["text", "speech", "finish"]),
        (lambda case: case.failure("speech"), ["text", "fail"]),
        (lambda case: case.end(), ["text", "fail"]),
    ],
    ids=["result", "failure", "end"],
)
def test_a_thread_that_is_held_up_with_a_result_loses_nothing(
    moment: str, other: Callable[[Case], None], expected: list[str]
) -> None:
    """It has noted the result, or is about to put it on its way, when another thread would end the request."""
    case = Case()
    is_there, is_done = threading.Event(), threading.Event()

    def hold_up() -> None:
        is_there.set()
        is_done.wait(PATIENCE)

    if moment == "noted":
        case.request.completed = SlowSet(hold_up)
    else:
        case.answers.before_put = hold_up
    first = threading.Thread(target=case.result, args=("text",))
    first.start()
    assert is_there.wait(10)
    other(case)
    is_done.set()
    first.join(10)
    assert case.came() == expected
    assert case.requests.get("1") is None


def test_a_result_of_a_request_that_has_ended_meanwhile_is_dropped() -> None:
    case = Case()

    def unpack(epoch: int, payload: Any) -> Any:
        case.end()
        return payload

    case.carrier.unpack = unpack
    case.result("text")
    assert case.came() == ["fail"]


@pytest.mark.parametrize("send", [Case.chunk, Case.result])
@pytest.mark.parametrize("known", [True, False], ids=["known", "not yet known"])
def test_what_a_dead_process_sent_last_ends_nothing_else(send: Callable[[Case, str], None], known: bool) -> None:
    """Its bytes are gone with it, whether it is known by then that it died."""
    case = Case()

    def gone(epoch: int, payload: Any) -> Any:
        raise TransferFailed("the sender's shared memory cannot be opened")

    unpack, case.carrier.unpack = case.carrier.unpack, gone
    if known:
        case.failure("speech")
    send(case, "speech")
    assert len(case.declined) == known, "what is not read is given back, once"
    case.carrier.unpack = unpack
    case.failure("speech")
    case.chunk("text")
    send(case, "speech")
    assert case.requests.get("1") is case.request
    case.result("text")
    assert case.came() == ["chunk", "text", "fail"]
    assert str(case.request.error) == ("speech is gone" if known else "the sender's shared memory cannot be opened")
