"""Credits: each is sent once, by the receiving thread where it can, and never so that this one waits."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator

import pytest

from omni_python.pipeline import credits as credits_module
from omni_python.pipeline.credits import Credits
from omni_python.relay.put_off import handle


class Sent:
    """What was sent: the thread, whether it would have waited, and to whom what."""

    def __init__(self) -> None:
        self.calls: queue.SimpleQueue[tuple[int, bool, int, str, list[int]]] = queue.SimpleQueue()
        self.refuse = False

    def __call__(self, epoch: int, relay: str, generations: list[int], wait: bool) -> bool:
        if self.refuse and not wait:
            return False
        self.calls.put((threading.get_ident(), wait, epoch, relay, generations))
        return True

    def next(self) -> tuple[int, bool, int, str, list[int]]:
        return self.calls.get(timeout=10)


@pytest.fixture
def sent() -> Sent:
    return Sent()


@pytest.fixture
def credits(sent: Sent) -> Iterator[Credits]:
    credits = Credits(sent)
    credits.start()
    yield credits
    credits.stop()


def test_the_receiving_thread_sends_what_it_noted_when_it_is_done(credits: Credits, sent: Sent) -> None:
    def handler(message: None) -> None:
        credits.note(7, "shm", 1)
        credits.note(8, "shm", 2)
        assert sent.calls.empty()

    handle(handler, None)
    me = threading.get_ident()
    assert [sent.next(), sent.next()] == [(me, False, 7, "shm", [1]), (me, False, 8, "shm", [2])]
    handle(lambda message: None, None)
    assert sent.calls.empty(), "once"


def test_others_have_a_thread_of_their_own(credits: Credits, sent: Sent) -> None:
    def handler(message: None) -> None:
        other = threading.Thread(target=credits.note, args=(7, "shm", 1))
        other.start()
        other.join()
        thread, wait, *what = sent.next()
        assert thread not in (threading.get_ident(), other.ident) and wait and what == [7, "shm", [1]]

    handle(handler, None)
    credits.note(7, "shm", 2)
    thread, wait, *what = sent.next()
    assert thread != threading.get_ident() and wait and what == [7, "shm", [2]], "nothing is held between messages"


def test_what_cannot_be_sent_at_once_is_left_to_that_thread(credits: Credits, sent: Sent) -> None:
    sent.refuse = True
    handle(lambda message: credits.note(7, "shm", 1), None)
    thread, wait, *what = sent.next()
    assert thread != threading.get_ident() and wait and what == [7, "shm", [1]]


def test_what_could_not_be_sent_is_sent_once_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(credits_module, "RETRY", 0.05)
    results = iter([False, False, True, True])
    tried: queue.SimpleQueue[tuple[int, list[int]]] = queue.SimpleQueue()

    def send(epoch: int, relay: str, generations: list[int], wait: bool) -> bool:
        tried.put((epoch, generations))
        return next(results)

    credits = Credits(send)
    credits.note(7, "shm", 1)
    credits.note(7, "shm", 2)
    credits.note(8, "shm", 3)
    credits.start()
    assert [tried.get(timeout=10) for _ in range(4)] == [(7, [1, 2]), (8, [3])] * 2
    credits.stop()
    assert tried.empty()


def test_what_is_queued_at_the_end_is_sent(sent: Sent) -> None:
    credits = Credits(sent)
    for generation in range(5):
        credits.note(7, "shm", generation)
    credits.start()
    credits.stop()
    assert sent.next()[2:] == (7, "shm", [0, 1, 2, 3, 4])


def test_credits_are_still_sent_after_a_bug_in_what_sends_them(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(credits_module, "RETRY", 0.05)
    sent: queue.SimpleQueue[tuple[int, list[int]]] = queue.SimpleQueue()
    failed = threading.Event()

    def send(epoch: int, relay: str, generations: list[int], wait: bool) -> bool:
        if not failed.is_set():
            failed.set()
            raise RuntimeError("a bug in what sends")
        sent.put((epoch, generations))
        return True

    credits = Credits(send)
    credits.start()
    credits.note(7, "shm", 1)
    assert failed.wait(10)
    assert sent.get(timeout=10) == (7, [1])
    credits.note(8, "shm", 2)
    assert sent.get(timeout=10) == (8, [2])
    credits.stop()
    assert "a bug in what sends" in caplog.text
