"""Waiting for the outside world holds up nobody else, and ends with the request."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest

from omni_python.proto.errors import InvalidArgument, Unavailable
from omni_python.proto.payload import TextOutput
from omni_python.proto.work import IncomingMessage, OutgoingMessage
from omni_python.scheduling.cancellation import CancelToken
from omni_python.scheduling.prepared import PreparedScheduler
from omni_python.scheduling.simple import SimpleScheduler


class Outside:
    """What is waited for: payloads that begin with "wait" return once released."""

    def __init__(self) -> None:
        self.release = threading.Event()
        self.begun: list[str] = []
        self.cancelled: list[str] = []

    def prepare(self, payload: TextOutput, token: CancelToken) -> TextOutput:
        self.begun.append(payload.text)
        if payload.text == "wait and fail":
            raise InvalidArgument("no such file")
        while not self.release.wait(0.01):
            if token.is_cancelled():
                self.cancelled.append(payload.text)
                token.raise_if_cancelled()
        return TextOutput(payload.text + ", got")


@pytest.fixture
def outside() -> Outside:
    return Outside()


@pytest.fixture
def scheduler(outside: Outside) -> Iterator[PreparedScheduler]:
    inner = SimpleScheduler(lambda payload: TextOutput(payload.text.upper()))
    scheduler = PreparedScheduler(inner, outside.prepare, lambda payload: payload.text.startswith("wait"), most=3)
    scheduler.start()
    yield scheduler
    scheduler.stop()


def ask(scheduler: PreparedScheduler, request_id: str, text: str) -> None:
    scheduler.inbox.put(IncomingMessage(request_id, "new_request", TextOutput(text)))


def answer(scheduler: PreparedScheduler) -> OutgoingMessage:
    message = scheduler.outbox.get(timeout=10)
    assert message is not None
    return message


def wait_empty(scheduler: PreparedScheduler) -> None:
    for _ in range(500):
        if not any(scheduler.stats().values()):
            return
        time.sleep(0.01)
    raise AssertionError(scheduler.stats())


def test_a_slow_one_holds_up_no_other(scheduler: PreparedScheduler, outside: Outside) -> None:
    ask(scheduler, "a", "wait a")
    ask(scheduler, "b", "wait b")
    ask(scheduler, "c", "at once")
    first = answer(scheduler)
    assert (first.request_id, first.type, first.data.text) == ("c", "result", "AT ONCE")
    outside.release.set()
    assert {(m.request_id, m.data.text) for m in (answer(scheduler), answer(scheduler))} == {
        ("a", "WAIT A, GOT"),
        ("b", "WAIT B, GOT"),
    }
    wait_empty(scheduler)


def test_an_abort_ends_the_waiting(scheduler: PreparedScheduler, outside: Outside) -> None:
    ask(scheduler, "a", "wait a")
    ask(scheduler, "b", "at once")
    answer(scheduler)
    assert scheduler.stats()["preparing"] == 1
    scheduler.abort("a")
    wait_empty(scheduler)
    assert outside.cancelled == ["wait a"] and scheduler.outbox.empty()


def test_failures_and_too_many(scheduler: PreparedScheduler, outside: Outside) -> None:
    ask(scheduler, "x", "wait and fail")
    failed = answer(scheduler)
    assert (failed.request_id, failed.type) == ("x", "error") and isinstance(failed.data, InvalidArgument)
    wait_empty(scheduler)
    for number in range(4):
        ask(scheduler, str(number), f"wait {number}")
    refused = answer(scheduler)
    assert (refused.request_id, refused.type) == ("3", "error") and isinstance(refused.data, Unavailable)
    assert "3 requests are waiting for their media" in str(refused.data)
    outside.release.set()
    assert sorted(answer(scheduler).request_id for _ in range(3)) == ["0", "1", "2"]


def test_stopping_ends_the_waiting(outside: Outside) -> None:
    scheduler = PreparedScheduler(
        SimpleScheduler(lambda payload: payload), outside.prepare, lambda payload: True, most=3
    )
    scheduler.start()
    ask(scheduler, "a", "wait")
    while not outside.begun:
        time.sleep(0.01)
    scheduler.stop()
    wait_empty(scheduler)
    assert outside.cancelled == ["wait"]
