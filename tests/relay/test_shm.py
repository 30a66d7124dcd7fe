"""The shared-memory relay, between real processes."""

from __future__ import annotations

import gc
import os
import queue
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial

import numpy as np
import pytest

from omni_python.proto.codec import EncodedPayload
from omni_python.proto.errors import Cancelled, OmniError, Unavailable
from omni_python.proto.payload import Payload
from omni_python.proto.refs import ShmRef
from omni_python.relay import shm
from omni_python.relay.base import RelaySettings, TransferFailed
from omni_python.relay.shm import COPY_LIMIT, PATIENCE, ShmRelay
from omni_python.relay.slots import Slots
from tests.waiting import wait_until


class Block(Payload):
    data: np.ndarray


def encoded(nbytes: int) -> EncodedPayload:
    return EncodedPayload(Block(np.frombuffer(os.urandom(nbytes), np.uint8)))


READER = 7
"""The reader's epoch."""


class Pair:
    """A sending relay and a reading one, whose credits arrive at once."""

    def __init__(self, nbytes: int = 1 << 20) -> None:
        settings = RelaySettings(pool_bytes=nbytes)
        self.sender = ShmRelay(settings, 1, lambda *_: None)
        self.reader = ShmRelay(RelaySettings(pool_bytes=4096), READER, self._credit)

    def _credit(self, sender: int, relay: str, generation: int) -> None:
        assert (sender, relay) == (1, "shm")
        self.sender.credit(generation, READER)

    def put(self, nbytes: int, timeout: float = 1.0, request_id: str = "") -> ShmRef:
        return self.sender.put(encoded(nbytes), [READER], request_id, timeout).metadata

    def view(self, ref: ShmRef) -> np.ndarray:
        return self.reader.get_view(1, ref)

    def once_one_waits(self, call: Callable[..., object], *arguments: object) -> threading.Thread:
        """Call this, on a thread of its own, once a payload waits for a slot."""

        def wait_and_call() -> None:
            wait_until(lambda: self.sender.slots.waits)
            call(*arguments)

        thread = threading.Thread(target=wait_and_call)
        thread.start()
        return thread

    @property
    def in_use(self) -> int:
        return len(self.sender.slots)


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """What finds no room in the pool waits for it, and takes no memory beside it."""
    monkeypatch.setattr(shm, "PATIENCE", 60.0)


@pytest.fixture
def pair() -> Iterator[Pair]:
    pair = Pair()
    yield pair
    pair.sender.close()
    pair.reader.close()


# A view of another process's memory is read-only; torch has no such tensors and says so once.
pytestmark = pytest.mark.filterwarnings("ignore:The given NumPy array is not writable")


@pytest.mark.parametrize("nbytes", [1, 4095, COPY_LIMIT, COPY_LIMIT + 1, 1 << 20, (1 << 20) + 1, 5 << 20])
def test_bytes_arrive_and_the_slot_comes_back(pair: Pair, nbytes: int) -> None:
    payload = encoded(nbytes)
    operation = pair.sender.put(payload, [READER])
    assert pair.in_use == 1 and not operation.wait_for_completion(0)
    view = pair.view(operation.metadata)
    assert view.tobytes()[:nbytes] == payload.inline()[:nbytes]
    del view
    gc.collect()
    assert pair.in_use == 0 and operation.wait_for_completion(0)


def test_a_slot_is_held_until_the_last_tensor_cut_from_it_is_gone(pair: Pair) -> None:
    import torch

    view = pair.view(pair.put(200_000))
    tensor = torch.from_numpy(view[1000:2000])
    row = tensor[3:5]
    del view, tensor
    gc.collect()
    assert pair.in_use == 1
    del row
    gc.collect()
    assert pair.in_use == 0


def test_views_are_read_only(pair: Pair) -> None:
    view = pair.view(pair.put(200_000))
    with pytest.raises(ValueError, match="read-only"):
        view[0] = 1


def test_what_is_produced_in_place_is_not_copied(pair: Pair) -> None:
    allocation = pair.sender.alloc(300_000)
    allocation.memory[:] = 5
    ref = pair.sender.put(EncodedPayload(Block(allocation.memory)), [READER]).metadata
    assert (pair.in_use, ref.nbytes) == (1, 300_000)
    allocation.memory[7] = 9  # which a copy would not show
    assert pair.view(ref)[:9].tolist() == [5] * 7 + [9, 5]
    pair.sender.release(allocation)
    gc.collect()
    assert pair.in_use == 0


def test_an_allocation_that_is_dropped_or_sent_in_part_comes_back(pair: Pair) -> None:
    dropped = pair.sender.alloc(300_000)
    pair.sender.release(dropped)
    assert pair.in_use == 0
    part = pair.sender.alloc(300_000)
    part.memory[:] = 3
    ref = pair.sender.put(EncodedPayload(Block(part.memory[100:])), [READER]).metadata
    assert pair.in_use == 2, "what begins elsewhere is copied to a slot of its own"
    assert pair.view(ref)[:3].tolist() == [3, 3, 3]
    pair.sender.release(part)
    gc.collect()
    assert pair.in_use == 0


def test_a_pressed_pool_makes_readers_copy(pair: Pair) -> None:
    held = [pair.view(pair.put(200_000)) for _ in range(20)]
    assert len(held) == 20, "twenty 200 kB payloads went through a pool of 1 MB while all are held"
    assert pair.in_use <= 3


def test_a_full_pool_waits_and_goes_on(patient: None, pair: Pair) -> None:
    refs = [pair.put(250_000) for _ in range(4)]
    crediting = pair.once_one_waits(pair.sender.credit, refs[0].generation, READER)
    assert pair.put(250_000, timeout=20).offset == refs[0].offset
    crediting.join()
    assert pair.sender.stats == {"slots": 4, "waits": 1, "extras": 0}
    with pytest.raises(Unavailable, match=r"no relay slot .* 4 slots are held"):
        pair.put(250_000, timeout=0.05)


def test_views_that_wait_for_a_payload_do_not_keep_it_from_coming(pair: Pair) -> None:
    """A fan-in: half of the pool is held until something arrives that does not fit into the other half."""
    held = [pair.view(pair.put(250_000)) for _ in range(2)]
    start = time.monotonic()
    late = pair.view(pair.put(900_000, timeout=30))
    assert PATIENCE <= time.monotonic() - start < 5
    assert (pair.in_use, pair.sender.stats["extras"], len(held), late.nbytes) == (3, 1, 2, 900_032)
    del held, late
    gc.collect()
    assert pair.in_use == 0


def test_small_payloads_do_not_starve_a_large_one(patient: None, pair: Pair) -> None:
    refs = [pair.put(250_000) for _ in range(4)]
    order: list[str] = []

    def wait_for(nbytes: int, name: str) -> None:
        pair.put(nbytes, timeout=20)
        order.append(name)

    threads = [threading.Thread(target=wait_for, args=args) for args in ((400_000, "large"), (4096, "small"))]
    for number, thread in enumerate(threads, 1):
        thread.start()
        wait_until(partial(_has_waited, pair, number))
    for ref in refs[:2]:
        assert order == []
        pair.sender.credit(ref.generation, READER)
    for thread in threads:
        thread.join()
    assert sorted(order) == ["large", "small"]
    assert pair.in_use == 4


def _has_waited(pair: Pair, often: int) -> bool:
    return pair.sender.slots.waits == often


def test_the_end_of_a_request_ends_its_wait(patient: None, pair: Pair) -> None:
    for _ in range(4):
        pair.put(250_000)
    ending = pair.once_one_waits(pair.sender.cleanup, "ended")
    with pytest.raises(Cancelled, match="ended while it waited"):
        pair.put(250_000, timeout=20, request_id="ended")
    ending.join()
    pair.sender.cleanup("ended")
    pair.sender.credit(1, READER)
    assert pair.put(250_000, request_id="ended"), "the end of a wait is not kept for later ones"


def test_late_and_doubled_credits_change_nothing(pair: Pair) -> None:
    first = pair.put(1000)
    assert not pair.sender.credit(first.generation, READER + 1), "another's credit"
    assert pair.sender.credit(first.generation, READER)
    assert not pair.sender.credit(first.generation, READER)
    second = pair.put(1000)
    assert second.offset == first.offset and second.generation != first.generation
    assert not pair.sender.credit(first.generation, READER)
    assert pair.in_use == 1


def test_every_reader_of_a_fan_out_credits_once(pair: Pair) -> None:
    ref = pair.sender.put(encoded(1000), [READER, READER, 8]).metadata
    for reader, left in ((READER, 1), (8, 1), (READER, 0)):
        assert pair.sender.credit(ref.generation, reader)
        assert pair.in_use == left


def test_a_dead_readers_slots_come_back_and_no_others(pair: Pair) -> None:
    alone, shared = (pair.sender.put(encoded(1000), readers).metadata for readers in ([READER], [READER, 8]))
    time.sleep(0.05)
    assert pair.in_use == 2, "time alone frees nothing"
    pair.sender.forget(READER)
    assert pair.in_use == 1
    assert not pair.sender.credit(alone.generation, READER)
    assert pair.sender.credit(shared.generation, 8)
    assert pair.in_use == 0


def test_what_was_being_written_for_a_reader_that_died_is_free_again() -> None:
    slots = Slots(1 << 20)
    alone, shared = slots.take(10), slots.take(10)
    slots.forget(READER)
    slots.commit(alone, [READER])
    slots.commit(shared, [READER, READER + 1])
    assert len(slots) == 1 and shared.readers == [READER + 1]
    assert slots.credit(shared.generation, READER + 1) and len(slots) == 0


def test_random_use_never_overlaps_and_ends_empty(pair: Pair) -> None:
    rng = random.Random()
    live: list[tuple[ShmRef, bytes]] = []

    def slot_bytes(ref: ShmRef) -> bytes:
        return pair.sender._segment.memory[ref.offset : ref.offset + ref.nbytes].tobytes()

    def end_one() -> None:
        ref, written = live.pop(rng.randrange(len(live)))
        assert slot_bytes(ref) == written
        assert pair.sender.credit(ref.generation, READER)

    for _ in range(600):
        if live and (rng.random() < 0.5 or len(live) > 12):
            end_one()
        else:
            ref = pair.put(rng.randrange(1, 60_000))
            live.append((ref, slot_bytes(ref)))
    while live:
        end_one()
    assert (pair.in_use, pair.sender.slots._space.parts) == (0, [(0, 1 << 20)])


def test_references_outside_the_segment_are_refused(pair: Pair) -> None:
    ref = pair.put(100)
    for offset, nbytes in ((ref.size, 1), (-64, 10), (0, ref.size + 1)):
        bad = ShmRef(ref.generation, nbytes, ref.pid, ref.fd, ref.size, offset)
        with pytest.raises(OmniError, match="outside its segment"):
            pair.view(bad)


CHILD = """
import sys, msgspec, numpy as np
from omni_python.proto.codec import EncodedPayload
from omni_python.proto.payload import Payload
from omni_python.relay.base import RelaySettings
from omni_python.relay.shm import ShmRelay
class Block(Payload):
    data: np.ndarray
relay = ShmRelay(RelaySettings(pool_bytes=1 << 22), 5, lambda *_: None)
for n in (1 << 20, 1 << 21):
    block = Block(np.arange(n, dtype=np.uint32).view(np.uint8)[:n])
    print(msgspec.json.encode(relay.put(EncodedPayload(block), [7]).metadata).decode(), flush=True)
for line in sys.stdin:
    print(relay.credit(int(line), 7), len(relay.slots), flush=True)
"""


def test_two_processes_and_a_killed_sender() -> None:
    import msgspec

    child = subprocess.Popen(
        [sys.executable, "-c", CHILD],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert child.stdin is not None and child.stdout is not None
    credits: queue.SimpleQueue[tuple[int, str, int]] = queue.SimpleQueue()
    reader = ShmRelay(RelaySettings(pool_bytes=4096), READER, lambda *credit: credits.put(credit))
    try:
        refs = [msgspec.json.decode(child.stdout.readline(), type=ShmRef) for _ in range(2)]
        views = [reader.get_view(5, ref) for ref in refs]
        expected = [np.arange(n, dtype=np.uint32).view(np.uint8)[:n] for n in (1 << 20, 1 << 21)]
        assert np.array_equal(views[0], expected[0])
        del views[0]
        gc.collect()
        epoch, relay, generation = credits.get(timeout=10)
        assert (epoch, relay) == (5, "shm")
        child.stdin.write(f"{generation}\n")
        child.stdin.flush()
        assert child.stdout.readline().split() == ["True", "1"]
        child.send_signal(signal.SIGKILL)
        child.wait(5)
        assert np.array_equal(views[0], expected[1]), "what is mapped outlives its sender"
        reader.forget(5)
        with pytest.raises(TransferFailed, match="cannot be opened"):
            reader.get_view(6, refs[0])
    finally:
        child.kill()
        child.communicate()
        reader.close()


def test_closing_wakes_those_who_wait(patient: None, pair: Pair) -> None:
    pair.put(1 << 20)
    closing = pair.once_one_waits(pair.sender.close)
    with pytest.raises(OmniError, match="closed"):
        pair.put(10, timeout=20)
    closing.join()
