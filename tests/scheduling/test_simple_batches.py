"""Batches of SimpleScheduler: outputs leave as they come, and a request fails by its own fault alone."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence

from omni_python.proto.payload import Payload, TextOutput
from omni_python.proto.work import IncomingMessage, OutgoingMessage
from omni_python.scheduling.simple import SimpleScheduler


def ask(scheduler: SimpleScheduler, *texts: str) -> None:
    for text in texts:
        scheduler.inbox.put(IncomingMessage(text, "new_request", TextOutput(text)))


def answer(scheduler: SimpleScheduler) -> OutgoingMessage:
    message = scheduler.outbox.get(timeout=5)
    assert message is not None
    return message


def test_an_output_is_sent_on_before_the_next_one_is_computed() -> None:
    go = threading.Event()

    def compute(payloads: Sequence[TextOutput]) -> Iterator[Payload]:
        yield TextOutput(payloads[0].text * 2)
        assert go.wait(5)
        yield TextOutput(payloads[1].text * 2)

    scheduler = SimpleScheduler(compute_batch=compute, max_batch_size=2)
    ask(scheduler, "a", "b")
    scheduler.start()
    first = answer(scheduler)
    assert (first.request_id, first.data.text) == ("a", "aa")
    assert scheduler.stats()["running"] == 2
    go.set()
    assert answer(scheduler).data.text == "bb"
    scheduler.stop()
    assert set(scheduler.stats().values()) == {0}


def test_none_fails_by_anothers_fault() -> None:
    batches: list[list[str]] = []

    def compute(payloads: Sequence[TextOutput]) -> Iterator[Payload]:
        batches.append([payload.text for payload in payloads])
        for payload in payloads:
            if payload.text == "bad":
                raise ValueError("no")
            yield TextOutput(payload.text.upper())

    scheduler = SimpleScheduler(compute_batch=compute, max_batch_size=4)
    ask(scheduler, "a", "bad", "c", "d")
    scheduler.start()
    got = {message.request_id: message for message in (answer(scheduler) for _ in range(4))}
    scheduler.stop()
    assert {name: message.type for name, message in got.items()} == {
        "a": "result",
        "bad": "error",
        "c": "result",
        "d": "result",
    }
    assert (got["c"].data.text, str(got["bad"].data)) == ("C", "no")
    assert batches == [["a", "bad", "c", "d"], ["bad"], ["c"], ["d"]], "what was answered is not computed again"
    assert len(scheduler.outbox) == 0


def test_a_batch_is_left_once_nobody_wants_the_rest() -> None:
    begun, go = threading.Event(), threading.Event()
    computed = []

    def compute(payloads: Sequence[TextOutput]) -> Iterator[Payload]:
        for payload in payloads:
            if payload.text == "b":
                begun.set()
                assert go.wait(30)
            computed.append(payload.text)
            yield payload

    scheduler = SimpleScheduler(compute_batch=compute, max_batch_size=4)
    ask(scheduler, *"abcd")
    scheduler.start()
    assert begun.wait(30)
    scheduler.abort("b")
    scheduler.abort("d")
    go.set()
    assert [answer(scheduler).request_id for _ in "abc"] == ["a", "b", "c"]
    scheduler.stop()
    assert computed == ["a", "b", "c"], "c is wanted; b could not be left out of the middle"
