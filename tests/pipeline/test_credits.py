"""Credits: each is sent once, by the receiving thread where it can, and never so that this one waits."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator

import pytest

from omni_python.pipeline.credits import Credits


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
    credits.hold(threading.get_ident())
    for generation in (1, 2):
        credits.note(7, "shm", generation)
    credits.note(8, "shm", 3)
    assert sent.calls.empty()
    credits.settle()
    me = threading.get_ident()
    assert [sent.next(), sent.next()] == [(me, False, 7, "shm", [1, 2]), (me, False, 8, "shm", [3])]
    credits.settle()
    assert sent.calls.empty(), "once"


def test_others_have_a_thread_of_their_own(credits: Credits, sent: Sent) -> None:
    credits.hold(threading.get_ident())
    other = threading.Thread(target=credits.note, args=(7, "shm", 1))
    other.start()
    other.join()
    thread, wait, *what = sent.next()
    assert thread not in (threading.get_ident(), other.ident) and wait and what == [7, "shm", [1]]
    credits.settle()
    credits.note(7, "shm", 2)
    thread, wait, *what = sent.next()
    assert thread != threading.get_ident() and wait and what == [7, "shm", [2]], "nothing is held between messages"


def test_what_cannot_be_sent_at_once_is_left_to_that_thread(credits: Credits, sent: Sent) -> None:
    sent.refuse = True
    credits.hold(threading.get_ident())
    credits.note(7, "shm", 1)
    credits.settle()
    thread, wait, *what = sent.next()
    assert thread != threading.get_ident() and wait and what == [7, "shm", [1]]


def test_what_is_queued_at_the_end_is_sent(sent: Sent) -> None:
    credits = Credits(sent)
    for generation in range(5):
        credits.note(7, "shm", generation)
    credits.start()
    credits.stop()
    assert sent.next()[2:] == (7, "shm", [0, 1, 2, 3, 4])
