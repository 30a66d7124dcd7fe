"""What is particular to backends whose readers fetch the bytes to memory of their own."""

from __future__ import annotations

import gc
import queue
import threading
from collections.abc import Callable
from typing import Any, NoReturn

import pytest

from omni_python.proto.codec import EncodedPayload
from omni_python.relay.base import RelaySettings, RelayUnavailable, TransferFailed, open_relay
from omni_python.relay.reads import ReadRelay
from tests.relay.blocks import Tensors

READER = 7
"""The reader's epoch."""


class Contended(queue.SimpleQueue[int]):
    """Where another thread is always the one to `take` what is there."""

    def __init__(self, take: Callable[[int], object]) -> None:
        self._take = take

    def get(self, block: bool = True, timeout: float | None = None) -> int:
        while not self.empty():
            self._take(super().get_nowait())
        return super().get(block, timeout)

    def get_nowait(self) -> int:
        return self.get(block=False)


def opened(backend: str, settings: RelaySettings, epoch: int) -> ReadRelay[Any]:
    """Skips the test where the backend cannot be had here."""
    try:
        relay = open_relay(backend, settings, epoch, lambda *_: None)
    except RelayUnavailable as error:
        pytest.skip(str(error))
    assert isinstance(relay, ReadRelay)
    return relay


@pytest.mark.parametrize("nbytes", [200_000, 3 << 20])
def test_what_cannot_be_offered_gives_its_slot_back(nbytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the pool, and beside it, where the backend is asked for the memory's description."""
    sender = opened("nixl", RelaySettings("nixl", 1 << 20), 1)
    payload = EncodedPayload(Tensors.of_bytes(nbytes, 1))

    def refuse(*_: object) -> NoReturn:
        raise TransferFailed("no description of this memory")

    with monkeypatch.context() as patched:
        patched.setattr(sender, "_ref", refuse)
        with pytest.raises(TransferFailed, match="no description"):
            sender.put(payload, [READER])
        allocation = sender.alloc(nbytes)
        with pytest.raises(TransferFailed, match="no description"):
            sender.commit(allocation, [READER])
    assert len(sender.slots) == 0
    assert sender.credit(sender.put(payload, [READER]).metadata.generation, READER)
    assert len(sender.slots) == 0
    sender.close()


@pytest.mark.parametrize("backend", ["nixl", "mooncake"])
def test_a_read_does_not_wait_for_what_another_thread_took_back_before_it(backend: str) -> None:
    settings = RelaySettings(backend, 1 << 20)
    sender = opened(backend, settings, 1)
    reader = opened(backend, settings, READER)
    reader.introduce(1, sender.announcement())
    landing = reader._landing
    reader._landed = Contended(lambda generation: landing.credit(generation, READER))
    payload = EncodedPayload(Tensors.of_bytes(200_000, 1))
    read: list[bytes] = []

    def read_one() -> None:
        read.append(reader.get_view(1, sender.put(payload, [READER]).metadata).tobytes())

    for _ in range(2):  # the second finds that what the first held is free again
        thread = threading.Thread(target=read_one, daemon=True)
        thread.start()
        thread.join(60)
        assert not thread.is_alive()
        gc.collect()
    assert read == [payload.inline()] * 2
    assert len(landing) == 1, "what the second held is taken back by the next"
    reader.close()
    sender.close()
