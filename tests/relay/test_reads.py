"""What is particular to backends whose readers fetch the bytes to memory of their own."""

from __future__ import annotations

import gc
import queue
import threading
from collections.abc import Callable

import pytest

from omni_python.proto.codec import EncodedPayload
from omni_python.relay.base import RelaySettings, RelayUnavailable, open_relay
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


@pytest.mark.parametrize("backend", ["nixl", "mooncake"])
def test_a_read_does_not_wait_for_what_another_thread_took_back_before_it(backend: str) -> None:
    settings = RelaySettings(backend, 1 << 20)
    try:
        sender = open_relay(backend, settings, 1, lambda *_: None)
    except RelayUnavailable as error:
        pytest.skip(str(error))
    reader = open_relay(backend, settings, READER, lambda *_: None)
    assert isinstance(reader, ReadRelay)
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
