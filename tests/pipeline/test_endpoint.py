"""An endpoint and the messages that it sends to itself."""

from __future__ import annotations

import queue
import tempfile
from pathlib import Path

import pytest

from omni_python.pipeline.endpoint import Endpoint
from omni_python.proto.errors import Unavailable
from omni_python.proto.messages import AbortMessage, ControlMessage
from omni_python.relay.base import RelaySettings


def test_a_nudge_wakes_the_process_and_changes_nothing() -> None:
    handled: queue.SimpleQueue[ControlMessage] = queue.SimpleQueue()
    with tempfile.TemporaryDirectory(prefix="omni-test-") as directory:
        endpoint = Endpoint(Path(directory), handled.put, RelaySettings(pool_bytes=1 << 20))
        endpoint.start()
        try:
            with pytest.raises(Unavailable, match="gone"):
                endpoint.send(endpoint.epoch, AbortMessage(endpoint.epoch, "before"))
            for _ in range(20):
                endpoint._nudge()
            endpoint.send(endpoint.epoch, AbortMessage(endpoint.epoch, "after"))  # behind them, in the same queue
            assert handled.get(timeout=10) == AbortMessage(endpoint.epoch, "after")
            assert handled.empty()
        finally:
            endpoint.stop()
