"""What a failed request brought is let go at once, and with it its slot: no collector of garbage may come for long."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from omni_python.proto.errors import Cancelled, InvalidArgument
from omni_python.proto.payload import Payload
from omni_python.proto.work import IncomingMessage, OutgoingMessage
from omni_python.scheduling.cancellation import CancelToken
from omni_python.scheduling.fair_queue import DirectQueue
from omni_python.scheduling.simple import SimpleScheduler
from tests.waiting import wait_until


class Brought:
    """Can be watched."""


@pytest.fixture
def no_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


ERRORS = [Cancelled("nobody wants it"), InvalidArgument("no such thing"), ValueError("a bug")]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("way", ["alone", "batch"])
def test_a_failed_payload_is_let_go(way: str, error: Exception, no_collector: None) -> None:
    """Python 3.12 links an error's frames with those that called them, down to the thread's first."""

    def fail(payload: Any, depth: int = 3) -> Payload:
        if depth:
            return fail(payload, depth - 1)
        raise type(error)(*error.args)

    def fail_alone(payload: Any, token: CancelToken) -> Payload:
        return fail(payload)

    def fail_all(payloads: Sequence[Any]) -> list[Payload]:
        return [fail(payload) for payload in payloads]

    scheduler = (
        SimpleScheduler(compute_cancellable=fail_alone)
        if way == "alone"
        else SimpleScheduler(compute_batch=fail_all, max_batch_size=4)
    )
    told = threading.Semaphore(0)

    def take(message: OutgoingMessage) -> None:
        assert type(message.data) is type(error)
        told.release()

    scheduler.outbox = DirectQueue(take)
    scheduler.start()
    for number in range(40):  # the interpreter learns, and takes other ways then
        brought = Brought()
        watched = weakref.ref(brought)
        scheduler.inbox.put(IncomingMessage(str(number), "new_request", brought))
        del brought
        assert told.acquire(timeout=20)
        wait_until(lambda watched=watched: watched() is None)  # type: ignore[misc]
    scheduler.stop()
