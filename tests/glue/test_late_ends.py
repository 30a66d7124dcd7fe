"""The ends of requests whose clients have left: Triton is told a while later, by one thread, which loses none."""

from __future__ import annotations

import importlib
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from omni_python.proto.errors import Cancelled
from tests.glue.fake_triton import OLD, OldResponse, Sender, TritonModelException
from tests.glue.loading import glue_on

LEFT = Cancelled("the client cancelled the request")


@pytest.fixture
def responses(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    with glue_on(OLD.module()):
        module = importlib.import_module("omni_python.glue.response")
        monkeypatch.setattr(module, "LEAVE", 0.5)
        yield module


class TimedSender(Sender):
    """Of a client that has left."""

    def __init__(self, fails: bool = False) -> None:
        super().__init__([])
        self.cancelled = True
        self.fails = fails
        self.ended_at = 0.0

    def send(self, response: OldResponse | None = None, flags: int = 0) -> None:
        self.ended_at = time.monotonic()
        if self.fails:
            raise TritonModelException("a bug in Triton")
        super().send(response, flags)


def test_many_clients_that_leave_take_one_thread_and_triton_hears_of_each_late(responses: Any) -> None:
    threads = threading.active_count()
    ends: list[tuple[float, TimedSender]] = []
    for _ in range(200):
        ends.append((time.monotonic(), TimedSender()))
        responses.send_error(ends[-1][1], LEFT)
    assert threading.active_count() <= threads + 1
    for given, sender in ends:
        [response] = sender.wait()
        assert response.has_error()
        assert sender.ended_at >= given + 0.5


def test_an_end_that_cannot_be_sent_takes_no_other_with_it(responses: Any, caplog: pytest.LogCaptureFixture) -> None:
    bad, good = TimedSender(fails=True), TimedSender()
    responses.send_error(bad, LEFT)
    responses.send_error(good, LEFT)
    good.wait()
    assert bad.ended_at
    assert "a bug in Triton" in caplog.text


def test_an_end_is_not_lost_where_no_thread_is_left_for_it(responses: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a container that is at its limit of processes for a moment."""

    def start(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    first, second = TimedSender(), TimedSender()
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", start)
        responses.send_error(first, LEFT)
    responses.send_error(second, LEFT)
    first.wait()
    second.wait()
