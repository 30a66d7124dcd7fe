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
from collections.abc import Iterator

import numpy as np
import pytest

from omni_python.proto.codec import EncodedPayload
from omni_python.proto.errors import OmniError, Unavailable
from omni_python.proto.messages import ShmRef
from omni_python.proto.payload import Payload
from omni_python.relay.shm import COPY_LIMIT, ShmPool, ShmReader


class Block(Payload):
    data: np.ndarray


def encoded(nbytes: int) -> EncodedPayload:
    return EncodedPayload(Block(np.frombuffer(os.urandom(nbytes), np.uint8)))


@pytest.fixture
def pool() -> Iterator[ShmPool]:
    pool = ShmPool(1 << 20)
    yield pool
    pool.close()


# A view of another process's memory is read-only; torch has no such tensors and says so once.
pytestmark = pytest.mark.filterwarnings("ignore:The given NumPy array is not writable")


def reader_of(pool: ShmPool) -> ShmReader:
    return ShmReader(lambda _epoch, fd, offset, generation: pool.release(fd, offset, generation))


@pytest.mark.parametrize("nbytes", [1, 4095, COPY_LIMIT, COPY_LIMIT + 1, 1 << 20, (1 << 20) + 1, 5 << 20])
def test_bytes_arrive_and_the_slot_comes_back(pool: ShmPool, nbytes: int) -> None:
    payload = encoded(nbytes)
    ref = pool.put(payload, timeout=1)
    assert pool.slots_in_use == 1
    view = reader_of(pool).view(7, ref)
    assert view.tobytes()[:nbytes] == payload.inline()[:nbytes]
    del view
    gc.collect()
    assert pool.slots_in_use == 0


def test_a_slot_is_held_until_the_last_tensor_cut_from_it_is_gone(pool: ShmPool) -> None:
    import torch

    view = reader_of(pool).view(1, pool.put(encoded(200_000), timeout=1))
    tensor = torch.from_numpy(view[1000:2000])
    row = tensor[3:5]
    del view, tensor
    gc.collect()
    assert pool.slots_in_use == 1
    del row
    gc.collect()
    assert pool.slots_in_use == 0


def test_views_are_read_only(pool: ShmPool) -> None:
    view = reader_of(pool).view(1, pool.put(encoded(200_000), timeout=1))
    with pytest.raises(ValueError, match="read-only"):
        view[0] = 1


def test_a_pressed_pool_makes_readers_copy(pool: ShmPool) -> None:
    reader = reader_of(pool)
    held = [reader.view(1, pool.put(encoded(200_000), timeout=1)) for _ in range(20)]
    assert len(held) == 20, "twenty 200 kB payloads went through a pool of 1 MB while all are held"
    assert pool.slots_in_use <= 3


def test_a_full_pool_waits_and_goes_on(pool: ShmPool) -> None:
    refs = [pool.put(encoded(250_000), timeout=1) for _ in range(4)]
    threading.Timer(0.1, pool.release, (refs[0].fd, refs[0].offset, refs[0].generation)).start()
    assert pool.put(encoded(250_000), timeout=5).offset == refs[0].offset
    assert pool.waits == 1
    with pytest.raises(Unavailable, match=r"no relay slot .* 4 slots are held"):
        pool.put(encoded(250_000), timeout=0.05)


def test_late_and_doubled_credits_change_nothing(pool: ShmPool) -> None:
    first = pool.put(encoded(1000), timeout=1)
    assert pool.release(first.fd, first.offset, first.generation)
    assert not pool.release(first.fd, first.offset, first.generation)
    second = pool.put(encoded(1000), timeout=1)
    assert second.offset == first.offset and second.generation != first.generation
    assert not pool.release(first.fd, first.offset, first.generation)
    assert pool.slots_in_use == 1


def test_random_use_never_overlaps_and_ends_empty(pool: ShmPool) -> None:
    rng = random.Random()
    live: list[tuple[ShmRef, bytes]] = []

    def slot_bytes(ref: ShmRef) -> bytes:
        return pool._segment.memory[ref.offset : ref.offset + ref.nbytes].tobytes()

    def end_one() -> None:
        ref, written = live.pop(rng.randrange(len(live)))
        assert slot_bytes(ref) == written
        assert pool.release(ref.fd, ref.offset, ref.generation)

    for _ in range(600):
        if live and (rng.random() < 0.5 or len(live) > 12):
            end_one()
        else:
            ref = pool.put(encoded(rng.randrange(1, 60_000)), timeout=1)
            live.append((ref, slot_bytes(ref)))
    while live:
        end_one()
    assert (pool.slots_in_use, pool._free) == (0, [(0, 1 << 20)])


def test_references_outside_the_segment_are_refused(pool: ShmPool) -> None:
    ref = pool.put(encoded(100), timeout=1)
    for offset, nbytes in ((ref.size, 1), (-64, 10), (0, ref.size + 1)):
        bad = ShmRef(ref.pid, ref.fd, ref.size, offset, nbytes, ref.generation)
        with pytest.raises(OmniError, match="outside its segment"):
            reader_of(pool).view(1, bad)


CHILD = """
import os, sys, numpy as np
from omni_python.proto.codec import EncodedPayload
from omni_python.proto.payload import Payload
from omni_python.relay.shm import ShmPool
import msgspec
class Block(Payload):
    data: np.ndarray
pool = ShmPool(1 << 22)
for n in (1 << 20, 1 << 21):
    ref = pool.put(EncodedPayload(Block(np.arange(n, dtype=np.uint32).view(np.uint8)[:n])), 1)
    print(msgspec.json.encode(ref).decode(), flush=True)
for line in sys.stdin:
    fd, offset, generation = map(int, line.split())
    print(pool.release(fd, offset, generation), pool.slots_in_use, flush=True)
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
    credits: queue.SimpleQueue[tuple[int, int, int, int]] = queue.SimpleQueue()
    reader = ShmReader(lambda *credit: credits.put(credit))
    try:
        refs = [msgspec.json.decode(child.stdout.readline(), type=ShmRef) for _ in range(2)]
        views = [reader.view(5, ref) for ref in refs]
        expected = [np.arange(n, dtype=np.uint32).view(np.uint8)[:n] for n in (1 << 20, 1 << 21)]
        assert np.array_equal(views[0], expected[0])
        del views[0]
        gc.collect()
        epoch, *slot = credits.get(timeout=1)
        assert epoch == 5
        child.stdin.write(" ".join(map(str, slot)) + "\n")
        child.stdin.flush()
        assert child.stdout.readline().split() == ["True", "1"]
        child.send_signal(signal.SIGKILL)
        child.wait(5)
        assert np.array_equal(views[0], expected[1]), "what is mapped outlives its sender"
        reader.forget(5)
        with pytest.raises(Unavailable, match="cannot be opened"):
            reader.view(6, refs[0])
    finally:
        child.kill()
        child.communicate()


def test_closing_wakes_those_who_wait(pool: ShmPool) -> None:
    pool.put(encoded(1 << 20), timeout=1)
    threading.Timer(0.1, pool.close).start()
    start = time.monotonic()
    with pytest.raises(OmniError, match="closed"):
        pool.put(encoded(10), timeout=10)
    assert time.monotonic() - start < 5
