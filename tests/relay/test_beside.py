"""Payloads beside the pool: what is larger than all of it, or found no room in it. Credits are given by hand."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

from omni_python.proto.codec import EncodedPayload
from omni_python.proto.errors import Cancelled, OmniError, Unavailable
from omni_python.relay.base import Relay, RelaySettings, RelayUnavailable, open_relay
from omni_python.relay.mooncake import MooncakeRelay
from omni_python.relay.nixl import NixlRelay
from omni_python.relay.reads import Region
from omni_python.relay.slots import Beside, RelayClosed, Slots
from tests.relay.blocks import Tensors
from tests.waiting import wait_until

READER = 7
"""The reader's epoch."""

POOL = 1 << 20
LARGE = EncodedPayload(Tensors.of_bytes(3 * POOL // 2, 1))
WHOLE = EncodedPayload(Tensors.of_bytes(POOL - 4096, 2))
SMALL = EncodedPayload(Tensors.of_bytes(POOL // 4, 3))

PATIENT = 60.0
"""Seconds that no wait of these tests takes, on however slow a machine."""


class Sender:
    """A relay that sends, and threads in which it waits."""

    def __init__(self, relay: Relay[Any], threads: ThreadPoolExecutor) -> None:
        self.relay = relay
        self.slots = relay.slots
        self._threads = threads

    def put(self, source: EncodedPayload, timeout: float = PATIENT, request_id: str = "") -> int:
        """The generation of the slot."""
        generation: int = self.relay.put(source, [READER], request_id, timeout).metadata.generation
        return generation

    def start(self, source: EncodedPayload, request_id: str = "") -> Future[int]:
        """A put in a thread of its own, which waits when this returns, or is over."""
        waits = self.slots.waits
        future = self._threads.submit(self.put, source, PATIENT, request_id)
        wait_until(lambda: self.slots.waits > waits or future.done(), PATIENT)
        return future

    def credit(self, generation: int) -> None:
        assert self.relay.credit(generation, READER)


@contextmanager
def opened(backend: str) -> Iterator[Sender]:
    """Skips the test where the backend cannot be had here."""
    try:
        relay = open_relay(backend, RelaySettings(backend, POOL), 1, lambda *_: None)
    except RelayUnavailable as error:
        pytest.skip(str(error))
    with ThreadPoolExecutor() as threads:
        try:
            yield Sender(relay, threads)
        finally:
            relay.close()  # which ends what still waits


@pytest.fixture
def sender(request: pytest.FixtureRequest) -> Iterator[Sender]:
    """Of the backend that the test names, or of shared memory."""
    with opened(getattr(request, "param", "shm")) as sender:
        yield sender


each_backend = pytest.mark.parametrize("sender", ["shm", "nixl", "mooncake", "nccl"], indirect=True)


@each_backend
def test_what_is_larger_than_the_pool_waits_for_another_such(sender: Sender) -> None:
    first = sender.put(LARGE)
    second = sender.start(LARGE)
    assert not second.done()
    sender.credit(first)
    sender.credit(second.result(PATIENT))
    assert sender.relay.stats == {"slots": 0, "waits": 1, "extras": 2}


@each_backend
def test_a_wait_without_success_says_so_and_leaves_nothing(sender: Sender) -> None:
    first = sender.put(LARGE)
    start = time.monotonic()
    with pytest.raises(Unavailable, match=r"whole pool of 1048576, came free in 0\.2 s: 1 slots are held"):
        sender.put(LARGE, timeout=0.2)
    assert time.monotonic() - start >= 0.2
    sender.credit(first)
    sender.credit(sender.put(LARGE))
    assert sender.relay.stats == {"slots": 0, "waits": 1, "extras": 2}


@each_backend
def test_the_end_of_a_request_ends_its_wait(sender: Sender) -> None:
    first = sender.put(LARGE)
    ended, other = sender.start(LARGE, "ended"), sender.start(LARGE, "other")
    sender.relay.cleanup("ended")
    with pytest.raises(Cancelled, match="ended while it waited"):
        ended.result(PATIENT)
    assert not other.done()
    sender.credit(first)
    sender.credit(other.result(PATIENT))


@each_backend
def test_closing_ends_the_wait(sender: Sender) -> None:
    sender.put(LARGE)
    second = sender.start(LARGE)
    sender.slots.close()
    with pytest.raises(RelayClosed):
        second.result(PATIENT)


def test_payloads_in_the_pool_do_not_wait_for_those_beside_it(sender: Sender) -> None:
    sender.put(LARGE)
    large = sender.start(LARGE)
    for _ in range(8):
        sender.credit(sender.put(SMALL, timeout=0))
    assert not large.done()


def test_those_who_wait_for_room_beside_the_pool_get_it_in_turn(sender: Sender) -> None:
    """What found no room in the pool is not let in before what is larger, for which it would leave none."""
    first, _ = sender.put(LARGE), sender.put(WHOLE)
    larges = [sender.start(LARGE) for _ in range(2)]
    small = sender.start(SMALL)
    wait_until(lambda: len(sender.slots._queue_beside) == 3, PATIENT)
    sender.credit(first)
    for large in larges:
        wait([large, small], PATIENT, "FIRST_COMPLETED")
        assert not small.done()
        sender.credit(large.result(PATIENT))
    sender.credit(small.result(PATIENT))
    assert sender.relay.stats == {"slots": 1, "waits": 3, "extras": 4}


def test_room_in_the_pool_is_taken_by_what_waits_for_room_beside_it_too(sender: Sender) -> None:
    _, whole = sender.put(LARGE), sender.put(WHOLE)
    small = sender.start(SMALL)
    wait_until(lambda: len(sender.slots._queue_beside) == 1, PATIENT)
    sender.credit(whole)
    sender.credit(small.result(PATIENT))
    assert sender.relay.stats == {"slots": 1, "waits": 1, "extras": 1}
    assert not sender.slots._queue_beside


@pytest.mark.parametrize("kind", [NixlRelay, MooncakeRelay])
def test_memory_beside_the_pool_is_registered_while_it_is_out_and_no_other(
    kind: type[NixlRelay] | type[MooncakeRelay], monkeypatch: pytest.MonkeyPatch
) -> None:
    registered: list[Region] = []
    register, deregister = kind._register, kind._deregister

    def noted(relay: Any, region: Region) -> None:
        register(relay, region)
        registered.append(region)

    def struck_out(relay: Any, region: Region) -> None:
        deregister(relay, region)
        registered.remove(region)

    monkeypatch.setattr(kind, "_register", noted)
    monkeypatch.setattr(kind, "_deregister", struck_out)
    with opened(kind.name) as sender:
        first = sender.put(LARGE)
        with pytest.raises(Unavailable):
            sender.put(LARGE, timeout=0)
        assert len(registered) == 2, "the pool and what is out"
        sender.credit(first)
        assert len(registered) == 1
        sender.put(LARGE)
    assert registered == []


def test_what_fails_to_be_made_beside_the_pool_leaves_room_for_others() -> None:
    broken = [True]

    def make(nbytes: int) -> np.ndarray:
        if broken:
            raise OmniError("no memory")
        return np.empty(nbytes, np.uint8)

    slots = Slots(POOL, beside=Beside(make, lambda memory: None))
    with pytest.raises(OmniError, match="no memory"):
        slots.take(2 * POOL)
    assert len(slots) == 0
    broken.clear()
    assert slots.take(2 * POOL).extra.nbytes == 2 * POOL


def test_what_is_made_beside_the_pool_while_the_relay_closes_is_given_back() -> None:
    freed: list[int] = []

    def make(nbytes: int) -> int:
        closing = threading.Thread(target=slots.close)
        closing.start()
        closing.join()
        return nbytes

    slots = Slots(POOL, beside=Beside(make, freed.append))
    with pytest.raises(RelayClosed):
        slots.take(2 * POOL)
    assert freed == [2 * POOL] and len(slots) == 0
