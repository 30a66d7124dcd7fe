"""SimpleScheduler: one by one, in batches, with failures and aborts."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import pytest

from omni_python.proto.errors import Cancelled
from omni_python.proto.payload import Payload, TextOutput
from omni_python.proto.work import IncomingMessage, OutgoingMessage
from omni_python.scheduling.cancellation import CancelToken
from omni_python.scheduling.simple import SimpleScheduler


def ask(scheduler: SimpleScheduler, *texts: str) -> None:
    for text in texts:
        scheduler.inbox.put(IncomingMessage(text, "new_request", TextOutput(text)))


def answers(scheduler: SimpleScheduler, count: int) -> dict[str, OutgoingMessage]:
    taken = [scheduler.outbox.get(timeout=5) for _ in range(count)]
    return {message.request_id: message for message in taken if message}


def test_each_request_gets_its_own_answer_or_error() -> None:
    def compute(payload: TextOutput) -> Payload:
        if payload.text == "bad":
            raise ValueError("no")
        return TextOutput(payload.text.upper())

    scheduler = SimpleScheduler(compute)
    ask(scheduler, "a", "bad", "c")
    scheduler.start()
    got = answers(scheduler, 3)
    assert (got["a"].data.text, got["c"].data.text) == ("A", "C")
    assert got["bad"].type == "error" and isinstance(got["bad"].data, ValueError)
    scheduler.stop()
    assert set(scheduler.stats().values()) == {0}


def test_what_waits_is_computed_together_up_to_the_limit() -> None:
    sizes = []

    def compute(payloads: Sequence[TextOutput]) -> list[Payload]:
        sizes.append(len(payloads))
        return [TextOutput(payload.text * 2) for payload in payloads]

    scheduler = SimpleScheduler(compute_batch=compute, max_batch_size=4)
    ask(scheduler, *"abcdefghij")
    scheduler.start()
    got = answers(scheduler, 10)
    assert {request: message.data.text for request, message in got.items()} == {c: c * 2 for c in "abcdefghij"}
    assert sizes == [4, 4, 2]
    scheduler.stop()


def test_a_batch_of_the_wrong_length_fails_as_a_whole() -> None:
    scheduler = SimpleScheduler(compute_batch=lambda payloads: [], max_batch_size=2)
    ask(scheduler, "a", "b")
    scheduler.start()
    assert all(message.type == "error" for message in answers(scheduler, 2).values())
    scheduler.stop()


def test_an_abort_drops_what_has_not_begun() -> None:
    begun, go = threading.Event(), threading.Event()
    computed = []

    def compute(payload: TextOutput) -> Payload:
        begun.set()
        go.wait(5)
        computed.append(payload.text)
        return payload

    scheduler = SimpleScheduler(compute)
    scheduler.start()
    ask(scheduler, "first")
    assert begun.wait(5)
    ask(scheduler, "second", "third")
    scheduler.abort("second")
    scheduler.abort("unknown")
    go.set()
    answers(scheduler, 2)
    scheduler.stop()
    assert computed == ["first", "third"]


def test_streams_are_refused() -> None:
    scheduler = SimpleScheduler(lambda payload: payload)
    scheduler.inbox.put(IncomingMessage("a", "stream_chunk", TextOutput("x")))
    scheduler.start()
    assert "does not fit the edge" in str(answers(scheduler, 1)["a"].data)
    scheduler.stop()


@pytest.mark.parametrize("how", ["abort", "stop"])
def test_a_computation_that_polls_its_token_ends_early(how: str) -> None:
    begun = threading.Event()
    rounds: list[bool] = []

    def compute(payload: TextOutput, token: CancelToken) -> Payload:
        begun.set()
        while len(rounds) < 10_000:
            token.raise_if_cancelled()
            rounds.append(threading.Event().wait(0.001))
        return payload

    scheduler = SimpleScheduler(compute_cancellable=compute)
    ask(scheduler, "long")
    scheduler.start()
    assert begun.wait(5)
    if how == "abort":
        scheduler.abort("unknown")
        scheduler.abort("long")
        assert isinstance(answers(scheduler, 1)["long"].data, Cancelled)
    scheduler.stop()
    assert len(rounds) < 10_000
    assert set(scheduler.stats().values()) == {0}


def test_exactly_one_way_to_compute_is_asked_for() -> None:
    with pytest.raises(ValueError, match="give one of"):
        SimpleScheduler()
    with pytest.raises(ValueError, match="give one of"):
        SimpleScheduler(lambda payload: payload, compute_batch=lambda payloads: payloads)
