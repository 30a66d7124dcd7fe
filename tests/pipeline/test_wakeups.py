"""What is shared out between threads so that few of them have to be woken."""

from __future__ import annotations

import queue
import tempfile
import threading
import time
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from omni_python.models.noop.config import NoopLinePipelineConfig
from omni_python.pipeline.answer_parts import JOINED_BYTES
from omni_python.pipeline.answers import REST, SENDS_A_TURN, AnswerThreads
from omni_python.pipeline.deadlines import DeadlineWatch
from omni_python.pipeline.watcher import LOOKS
from omni_python.proto.errors import Cancelled
from omni_python.proto.payload import AudioOutput, Payload, TextOutput
from tests.pipeline.harness import Sink, held_up, running
from tests.waiting import wait_until


def test_answers_keep_their_order_and_take_short_turns() -> None:
    sent: list[tuple[str, int]] = []
    begin, done = threading.Event(), threading.Semaphore(0)

    def send(request_id: str, number: int) -> None:
        begin.wait(10)
        sent.append((request_id, number))
        done.release()

    threads = AnswerThreads(1)
    threads.start()
    for request_id in "abc":
        for number in range(20):
            threads.put(request_id, partial(send, request_id, number))
    begin.set()
    for _ in range(60):
        assert done.acquire(timeout=10)
    threads.stop()
    for request_id in "abc":
        assert [number for found, number in sent if found == request_id] == list(range(20))
    turns = [(request_id, len(list(group))) for request_id, group in groupby(sent, key=lambda entry: entry[0])]
    assert turns == [(request_id, SENDS_A_TURN) for request_id in "abc"] * (20 // SENDS_A_TURN)


def test_chunks_that_wait_together_are_sent_as_one() -> None:
    rng = np.random.default_rng()
    pieces = [rng.standard_normal(rng.integers(1, 9), np.float32) for _ in range(12)]
    words = [f"{number} " for number in range(30)]
    sink = Sink()
    threads = AnswerThreads(1)
    for word in words:
        threads.put_chunk("a", sink, TextOutput(word))
    for piece in pieces:
        threads.put_chunk("a", sink, AudioOutput(piece, 24_000))
    threads.put_chunk("a", sink, AudioOutput(pieces[0], 16_000))
    threads.put_chunk("a", sink, TextOutput("x" * (JOINED_BYTES - 1)))
    threads.put_chunk("a", sink, TextOutput("yz"))
    threads.put("a", lambda: sink.finish(()))
    threads.put_chunk("a", sink, TextOutput("late"))
    threads.start()
    chunks, _ = sink.wait()
    assert sink.events.get(timeout=10) == ("chunk", TextOutput("late"))
    threads.stop()
    text, speech, other, full, rest = chunks
    assert text == TextOutput("".join(words))
    assert isinstance(speech, AudioOutput) and speech.sample_rate == 24_000
    np.testing.assert_array_equal(speech.samples, np.concatenate(pieces))
    assert isinstance(other, AudioOutput) and other.sample_rate == 16_000 and other.samples is pieces[0]
    assert full == TextOutput("x" * (JOINED_BYTES - 1)) and rest == TextOutput("yz")


def test_the_beginning_of_an_answer_goes_before_the_rest_of_others() -> None:
    sent: list[tuple[str, int]] = []
    busy, go, done = threading.Event(), threading.Event(), threading.Semaphore(0)
    threads = AnswerThreads(1)
    threads.start()

    def send(request_id: str, number: int) -> None:
        sent.append((request_id, number))
        if request_id == "a" and number == 0:
            busy.set()
            assert go.wait(10)
        done.release()

    for number in range(2 * SENDS_A_TURN):
        for request_id in "abc":
            threads.put(request_id, partial(send, request_id, number))
    assert busy.wait(10)
    threads.put("late", partial(send, "late", 0))
    go.set()
    for _ in range(6 * SENDS_A_TURN + 1):
        assert done.acquire(timeout=10)
    threads.stop()
    assert [sent.index((request_id, 0)) // SENDS_A_TURN for request_id in ("a", "b", "c")] == [0, 1, 2]
    assert sent.index(("late", 0)) == 3 * SENDS_A_TURN, "before the others' second turns"


def test_a_client_gets_no_crowd_of_small_responses() -> None:
    now = 100.0
    sink, other = Sink(), Sink()
    threads = AnswerThreads(1, clock=lambda: now)

    def got(of: Sink) -> tuple[str, Any]:
        return of.events.get(timeout=10)

    def is_idle() -> bool:
        """Whether nothing more is sent: what comes from now on is sent after what was to be sent before."""
        threads.put("idle", lambda: other.finish(()))
        return got(other) == ("finish", None) and sink.events.empty()

    threads.start()
    threads.put_chunk("a", sink, TextOutput("at once"))
    assert got(sink) == ("chunk", TextOutput("at once"))
    for word in ("joined", " ", "by those"):
        threads.put_chunk("a", sink, TextOutput(word))
    threads.relieve()
    assert is_idle()
    now += REST
    threads.put_chunk("a", sink, TextOutput(" that come later"))
    assert got(sink) == ("chunk", TextOutput("joined by those that come later"))

    threads.put_chunk("a", sink, TextOutput("where nothing comes"))
    assert is_idle()
    now += REST
    threads.relieve()
    assert got(sink) == ("chunk", TextOutput("where nothing comes"))

    threads.put_chunk("a", sink, TextOutput("another kind"))
    threads.put_chunk("a", sink, speech := AudioOutput(np.zeros(3, np.float32), 24_000))
    assert [got(sink), got(sink)] == [("chunk", TextOutput("another kind")), ("chunk", speech)]

    threads.put_chunk("a", sink, AudioOutput(np.zeros(JOINED_BYTES // 4, np.float32), 24_000))
    threads.put_chunk("a", sink, speech)
    assert len(got(sink)[1].samples) == JOINED_BYTES // 4, "what is full waits for nothing"
    threads.put("a", lambda: sink.finish(()))
    assert [got(sink), got(sink)] == [("chunk", speech), ("finish", None)]

    threads.put_chunk("b", sink, TextOutput("the rest"))
    assert got(sink) == ("chunk", TextOutput("the rest"))
    threads.put_chunk("b", sink, TextOutput("before the end"))
    threads.stop()
    assert got(sink) == ("chunk", TextOutput("before the end"))


def test_what_was_put_before_the_stop_is_sent() -> None:
    """More than a turn's worth of two requests, and a chunk that would rest."""
    sent: queue.SimpleQueue[str] = queue.SimpleQueue()
    busy, go = threading.Event(), threading.Event()

    class Held(Sink):
        def chunk(self, payload: Payload) -> None:
            busy.set()
            assert go.wait(20)
            assert isinstance(payload, TextOutput)
            sent.put(payload.text)

    threads = AnswerThreads(1, clock=lambda: 100.0)  # no rest ends by itself
    threads.start()
    sink = Held()
    threads.put_chunk("a", sink, TextOutput("chunk 1"))
    assert busy.wait(10)
    numbers = range(SENDS_A_TURN + 3)
    for request_id in "bc":
        for number in numbers:
            threads.put(request_id, partial(sent.put, f"{request_id} {number}"))
    threads.put_chunk("a", sink, TextOutput("chunk 2"))
    stop = threading.Thread(target=threads.stop)
    stop.start()
    wait_until(lambda: threads._turns._any.qsize() == 3, period=0.001)  # the two turns, and the thread's end
    go.set()
    found = [sent.get(timeout=10) for _ in range(2 + 2 * len(numbers))]
    stop.join(10)
    assert sorted(found) == sorted(["chunk 1", "chunk 2", *(f"{name} {number}" for name in "bc" for number in numbers)])
    assert [text for text in found if text[0] == "b"] == [f"b {number}" for number in numbers], "in order"


def test_a_send_that_fails_holds_up_nothing() -> None:
    sent: queue.SimpleQueue[int] = queue.SimpleQueue()

    def fail() -> None:
        raise ValueError("cannot be sent")

    threads = AnswerThreads(1)
    threads.start()
    threads.put("a", fail)
    threads.put("a", lambda: sent.put(1))
    assert sent.get(timeout=10) == 1
    threads.stop()


def test_a_deadline_before_all_others_is_kept() -> None:
    expired: queue.SimpleQueue[tuple[str, str]] = queue.SimpleQueue()
    watch = DeadlineWatch(lambda stage, request_id: expired.put((stage, request_id)))
    watch.start()
    try:
        watch.add("a", "far", time.monotonic() + 60)
        time.sleep(0.05)  # the thread now waits for that one
        watch.add("a", "near", time.monotonic() + 0.6)
        watch.add("a", "discarded", time.monotonic() + 0.5)
        watch.discard("a", "discarded")
        assert expired.get(timeout=10) == ("a", "near")
        watch.add("b", "nearer", time.monotonic() + 0.05)
        assert expired.get(timeout=10) == ("b", "nearer")
        assert len(watch) == 1
    finally:
        watch.stop()


def test_each_of_many_clients_is_looked_at() -> None:
    with (
        tempfile.TemporaryDirectory(prefix="omni-test-") as directory,
        running(NoopLinePipelineConfig(), Path(directory)) as pipeline,
    ):
        with held_up("b"):
            sinks = [pipeline.submit()[1] for _ in range(3 * LOOKS)]
            for sink in sinks[1:]:
                sink.cancelled = True
            for sink in sinks[1:]:
                with pytest.raises(Cancelled):
                    sink.wait()
        sinks[0].wait()
        pipeline.wait_empty()
