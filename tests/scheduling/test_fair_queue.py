"""The queue that takes turns between requests."""

from __future__ import annotations

import queue
import threading

import pytest

from omni_python.proto.work import IncomingMessage
from omni_python.scheduling.fair_queue import FairQueue


def message(request_id: str, number: int = 0) -> IncomingMessage:
    return IncomingMessage(request_id, "stream_chunk", number)


def test_requests_take_turns_and_keep_their_order() -> None:
    fair: FairQueue[IncomingMessage] = FairQueue()
    for request_id, count in (("a", 4), ("b", 2), ("c", 1)):
        for number in range(count):
            fair.put(message(request_id, number))
    assert len(fair) == 7
    taken = [fair.get() for _ in range(7)]
    assert [(m.request_id, m.data) for m in taken if m] == [
        ("a", 0), ("b", 0), ("c", 0), ("a", 1), ("b", 1), ("a", 2), ("a", 3),
    ]  # fmt: skip
    with pytest.raises(queue.Empty):
        fair.get_nowait()


def test_discarded_requests_are_passed_over() -> None:
    fair: FairQueue[IncomingMessage] = FairQueue()
    for request_id in ("a", "b", "a"):
        fair.put(message(request_id))
    fair.discard("a")
    fair.put(message("a", 9))
    assert [m.request_id if m else None for m in (fair.get(), fair.get())] == ["a", "b"]
    assert fair.empty() and len(fair) == 0


def test_none_wakes_a_reader() -> None:
    fair: FairQueue[IncomingMessage] = FairQueue()
    threading.Timer(0.05, fair.put, (None,)).start()
    assert fair.get(timeout=5) is None


def test_nothing_is_lost_between_threads() -> None:
    fair: FairQueue[IncomingMessage] = FairQueue()
    taken: list[IncomingMessage] = []

    def read() -> None:
        while (item := fair.get()) is not None:
            taken.append(item)

    def write(writer: int) -> None:
        for number in range(500):
            fair.put(message(f"{writer}-{number % 7}", number))

    readers = [threading.Thread(target=read) for _ in range(3)]
    writers = [threading.Thread(target=write, args=(writer,)) for writer in range(3)]
    for thread in readers + writers:
        thread.start()
    for thread in writers:
        thread.join()
    for _ in readers:
        fair.put(None)
    for thread in readers:
        thread.join()
    left = []
    while not fair.empty():
        left.append(fair.get())
    assert len(taken) + len(left) == 1500
