"""Every way from one process to another does the same: real processes, real libraries, the same tests for all."""

from __future__ import annotations

import importlib.util
import queue
import random
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from omni_python.proto.codec import ALIGNMENT
from omni_python.proto.errors import Cancelled, OmniError
from omni_python.proto.refs import CudaRef
from omni_python.relay.base import RelaySettings, RelayUnavailable, open_relay
from omni_python.relay.cuda_shm import MAX_PARTS
from omni_python.relay.ways import INLINE_LIMIT
from tests.relay.blocks import Tensors, chunk, digest
from tests.relay.processes import ROOT, Other, Parent, open_parent

WAYS = ["inline", "shm", "nixl", "mooncake", "nccl"] + [
    pytest.param(way, marks=pytest.mark.gpu)
    for way in ("cuda_shm", "cuda_shm 0-1", "nixl_cuda", "nixl_cuda 0-1", "nccl_cuda 0-1")
]
"""A relay's name, and from which GPU to which; the same for both where none is named."""

SIZES = [0, 1, 1 << 10, INLINE_LIMIT - ALIGNMENT, INLINE_LIMIT, 1 << 20, 64 << 20]
"""Bytes, beside which each payload has a small array."""


@pytest.fixture(scope="module", params=WAYS)
def parent(request: pytest.FixtureRequest) -> Iterator[Parent]:
    with open_parent(request.param) as parent:
        yield parent


@pytest.fixture(scope="module")
def child(parent: Parent) -> Other:
    return parent.start_child()


def test_bytes_of_every_size_are_equal_in_both_directions(parent: Parent, child: Other) -> None:
    before = dict(parent.carrier.carried)
    sizes = parent.sizes(SIZES)
    for size in sizes:
        payload = Tensors.of_bytes(size, size, parent.device)
        child.send(payload, "digest", str(size))
        assert parent.replies.get(timeout=30) == (str(size), digest(payload))
        child.let_send(1, size)
        received = parent.received.get(timeout=30)
        assert isinstance(received, Tensors)
        assert digest(received) == digest(Tensors.of_bytes(size, 0, parent.device))
        del received
        parent.wait_empty()
    carried = parent.carrier.carried[parent.way] - before.get(parent.way, 0)
    large = sum(size >= (1 if parent.device == "cuda" else INLINE_LIMIT) for size in sizes)
    assert carried == (len(sizes) if parent.way == "inline" else large)


def test_every_dtype_arrives(parent: Parent, child: Other) -> None:
    for count in (0, 1, 7) if parent.way == "inline" else (0, 1, 5000):
        payload = Tensors.of_all_dtypes(count, count, parent.device)
        child.send(payload, "digest")
        assert parent.replies.get(timeout=30) == ("0", digest(payload))
    parent.wait_empty()


def test_what_is_produced_in_place_arrives(parent: Parent, child: Other) -> None:
    if parent.way == "inline":
        pytest.skip("payloads on this way have nothing of the kind")
    relay = parent.carrier._relays[parent.way]
    allocation = relay.alloc(1 << 20)
    allocation.memory[:] = 3
    data = allocation.memory if parent.device == "cuda" else torch.from_numpy(allocation.memory)
    payload = Tensors({"data": data}, torch.zeros(0).numpy())
    child.send(payload, "digest")
    assert parent.replies.get(timeout=30) == ("0", digest(payload))
    assert relay.stats["slots"] <= 1
    parent.wait_empty()


@pytest.mark.gpu
def test_what_is_written_part_by_part_for_another_gpu_arrives(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several tensors, across the borders of the parts, of which the last are written while the first are read."""
    monkeypatch.setattr("omni_python.relay.cuda_shm.PART", 1 << 20)
    with open_parent("cuda_shm 0-1") as parent:
        child = parent.start_child()
        for number in range(20):
            sizes = [random.randrange(1, 8 << 20) for _ in range(6)]
            tensors = {str(size): torch.randint(256, (size,), dtype=torch.uint8, device="cuda") for size in sizes}
            payload = Tensors(tensors, torch.zeros(1).numpy())
            envelope = parent.carrier.pack(payload, [child.epoch], str(number))
            assert isinstance(envelope.device, CudaRef)
            assert len(envelope.device.parts) == min(max(envelope.device.nbytes >> 20, 1), MAX_PARTS) - 1
            child.send_envelope(envelope, "digest", str(number))
            assert parent.replies.get(timeout=30) == (str(number), digest(payload))
        parent.wait_empty()


def test_a_fan_out_uses_one_slot_and_reaches_everybody(parent: Parent, child: Other) -> None:
    second = parent.start_child()
    payload = Tensors.of_bytes(parent.sizes([300_000, 3000])[0], 1, parent.device)
    for _ in range(3):
        envelope = parent.carrier.pack(payload, [child.epoch, second.epoch])
        for other in (child, second):
            other.send_envelope(envelope, "digest")
        assert [parent.replies.get(timeout=30)[1] for _ in range(2)] == [digest(payload)] * 2
    parent.wait_empty()
    envelope = parent.carrier.pack(payload, [child.epoch, second.epoch])
    child.send_envelope(envelope, "digest")
    parent.replies.get(timeout=30)
    second.kill()
    parent.endpoint.forget(second.epoch)  # which had not even been told of it
    parent.wait_empty()


def test_payloads_larger_than_the_pool_wait_for_each_other(parent: Parent, child: Other) -> None:
    """As two large pictures at once: the reader holds the first while the second comes."""
    if parent.way == "inline" or parent.device == "cuda":
        pytest.skip("payloads on this way have nothing of the kind")
    payload = Tensors.of_bytes(33 << 20, 1)
    child.send(payload, "hold", "first")
    assert parent.replies.get(timeout=30) == ("first", digest(payload))
    waits = parent.carrier.stats()[parent.way]["waits"]
    second = threading.Thread(target=child.send, args=(payload, "hold", "second"))
    second.start()
    if parent.views:
        while second.is_alive() and parent.carrier.stats()[parent.way]["waits"] == waits:
            time.sleep(0.01)
        child.finish()
    assert parent.replies.get(timeout=30) == ("second", digest(payload))
    second.join()
    child.finish()
    parent.wait_empty()


def test_a_thousand_interleaved_streams_keep_their_order(parent: Parent, child: Other) -> None:
    """Chunks of one stream go inline and through slots in turns."""
    numbers = random.Random().sample(range(1000), 1000)
    for number in range(4):
        for request in numbers:
            child.send(chunk(str(request), number, parent.device), "stream", str(request), number)
    assert child.finish() == "0 wrong of 4000"
    parent.wait_empty()


def test_aborts_at_random_points_leave_nothing_out(parent: Parent, child: Other) -> None:
    """Requests end while they wait for room, before they are read, and while what came is held."""
    rng = random.Random()
    sizes = parent.sizes([0, 1000, 100_000, 3_000_000])
    ended: list[str] = []

    def send(thread: int) -> None:
        for number in range(25):
            request = f"{thread}.{number}"
            threading.Timer(rng.random() * 0.02, parent.carrier.cleanup, (request,)).start()
            try:
                child.send(Tensors.of_bytes(rng.choice(sizes), 1, parent.device), "random", request)
            except Cancelled:
                ended.append(request)

    threads = [threading.Thread(target=send, args=(thread,)) for thread in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    child.finish()
    parent.wait_empty()


def test_payloads_that_are_declined_give_their_slots_back(parent: Parent, child: Other) -> None:
    for _ in range(30):
        child.send(Tensors.of_bytes(parent.sizes([2_000_000, 1000])[0], 1, parent.device), "decline")
    parent.wait_empty()


def test_a_killed_receiver_gives_back_what_it_held_once_it_is_known_to_be_dead(parent: Parent) -> None:
    victim = parent.start_child()
    payload = Tensors.of_bytes(parent.sizes([300_000, 3000])[0], 1, parent.device)
    for _ in range(5):
        victim.send(payload, "hold")
        assert parent.replies.get(timeout=30)[1] == digest(payload)
    held = parent.carrier.slots_in_use
    victim.kill()
    for _ in range(3):
        victim.send(payload, "hold")
    time.sleep(0.2)
    assert parent.carrier.slots_in_use >= held, "time alone frees nothing"
    if parent.views:
        assert held == 5
    parent.endpoint.forget(victim.epoch)
    parent.wait_empty()
    with pytest.raises(OmniError, match="is gone"):
        victim.send(payload, "hold")
    parent.wait_empty()


def test_a_killed_sender_leaves_what_came_and_fails_what_did_not(parent: Parent, child: Other) -> None:
    victim = parent.start_child()
    size = parent.sizes([300_000, 3000])[0]
    victim.let_send(4, size)
    received = [parent.received.get(timeout=30) for _ in range(4)]
    victim.let_send(60, 50 * size)
    time.sleep(0.02)
    victim.kill()
    start = time.monotonic()
    while time.monotonic() - start < 1.5:
        try:
            late = parent.received.get(timeout=0.5)
        except queue.Empty:
            break
        if isinstance(late, Tensors):  # it came whole, or not at all
            assert late.tensors["data"].numel() == 50 * size
        del late
    assert time.monotonic() - start < 10
    parent.endpoint.forget(victim.epoch)
    for number, payload in enumerate(received):
        assert isinstance(payload, Tensors)
        assert digest(payload) == digest(Tensors.of_bytes(size, number, parent.device))
    received.clear()
    payload = Tensors.of_bytes(size, 9, parent.device)
    child.send(payload, "digest")
    assert parent.replies.get(timeout=30)[1] == digest(payload), "others are not affected"
    parent.wait_empty()


@pytest.mark.timeout(400)
@pytest.mark.parametrize("way", [way for way in WAYS if way != "inline"])
def test_a_slow_reader_never_sees_what_a_fast_writer_writes_next(way: str) -> None:
    """Two slots, always in use, each transfer with other bytes."""
    with open_parent(way, 2 * (128 << 10)) as parent:
        child = parent.start_child()
        count = 100_000 if parent.way == "cuda_shm" else 10_000 if parent.device == "cuda" else 1000
        marks = torch.zeros(127 << 8, dtype=torch.int32, device=parent.device)
        payload = Tensors({"marks": marks}, torch.zeros(1).numpy())
        for number in range(count):
            marks.fill_(number)
            child.send(payload, "slowly", "0", number)
        assert child.finish() == f"0 wrong of {count}"
        assert parent.carrier.carried[parent.way] == count
        parent.wait_empty()


@pytest.mark.gpu
def test_a_reader_does_not_wait_for_a_sender_that_died_before_its_gpu_was_done() -> None:
    """In a process of its own, whose GPU may hang. The payload may hold anything; its request is lost anyway."""
    if not torch.cuda.is_available():
        pytest.skip("needs a GPU: pytest -m gpu where there is one")
    command = [sys.executable, "-m", "tests.relay.orphan"]
    done = subprocess.run(command, cwd=ROOT, timeout=100, stdout=subprocess.PIPE, text=True)
    assert done.stdout.splitlines()[-1] == "went on"


@pytest.mark.parametrize(("backend", "module"), [("nixl", "nixl_cu1"), ("mooncake", "mooncake")])
def test_a_missing_library_is_named_at_start(backend: str, module: str, monkeypatch: pytest.MonkeyPatch) -> None:
    real = importlib.util.find_spec

    def find_spec(name: str, package: str | None = None) -> Any:
        return None if name.startswith(module) else real(name, package)

    monkeypatch.setattr(importlib.util, "find_spec", find_spec)
    for name in ("mooncake", "mooncake.engine"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(RelayUnavailable, match=rf"relay_backend {backend} needs .*pip install"):
        open_relay(backend, RelaySettings(backend, 1 << 20), 1, lambda *_: None)
