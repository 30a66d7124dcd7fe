"""What a thread puts off while it handles a message."""

from __future__ import annotations

import threading

import pytest

from omni_python.relay.put_off import ANSWER, CREDIT, WAKING, call_later, handle, put_off


def test_calls_wait_for_the_message_of_their_own_thread_alone() -> None:
    made: list[str] = []

    def handler(message: str) -> None:
        assert message == "the message"
        call_later(made.append, "first")
        assert put_off(made.append, "second", WAKING)
        other = threading.Thread(target=call_later, args=(made.append, "another thread's"))
        other.start()
        other.join()
        assert made == ["before", "another thread's"]

    call_later(made.append, "before")
    handle(handler, "the message")
    assert made[2:] == ["first", "second"]
    call_later(made.append, "after")
    assert made[-1] == "after"
    assert not put_off(made.append, "never", CREDIT)
    handle(made.append, "another message")
    assert made[-1] == "another message"


def test_each_has_its_turn_and_its_place_within_that() -> None:
    made: list[str] = []

    def handler(message: None) -> None:
        put_off(made.append, "answer", ANSWER)
        for number in range(3):
            put_off(made.append, f"credit {number}", CREDIT)
            call_later(made.append, f"waking {number}")

    handle(handler, None)
    assert made == ["waking 0", "waking 1", "waking 2", "credit 0", "credit 1", "credit 2", "answer"]


def test_nothing_is_lost_where_the_handler_or_a_call_fails(caplog: pytest.LogCaptureFixture) -> None:
    made: list[str] = []

    def fail(why: str) -> None:
        raise RuntimeError(why)

    def handler(message: None) -> None:
        call_later(fail, "a call failed")
        put_off(made.append, "answer", ANSWER)
        call_later(made.append, "waking")
        fail("the handler failed")

    with pytest.raises(RuntimeError, match="the handler failed"):
        handle(handler, None)
    assert made == ["waking", "answer"] and "a call failed" in caplog.text
    call_later(made.append, "at once")
    assert made[-1] == "at once", "the message is over"


def test_what_a_call_puts_off_itself_is_made_at_once() -> None:
    made: list[str] = []

    def call(argument: str) -> None:
        call_later(made.append, "by the first")
        made.append(argument)

    def handler(message: None) -> None:
        call_later(call, "first")
        call_later(made.append, "second")

    handle(handler, None)
    assert made == ["by the first", "first", "second"]
