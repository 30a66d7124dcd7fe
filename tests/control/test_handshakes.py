"""What is remembered of those who were refused; whom it refuses is tested with the network."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
import zmq

from omni_python.control.curve import load_key, make_key
from omni_python.control.handshakes import Handshakes


def test_refusals_are_logged_once_in_a_while_and_few_are_remembered(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Whoever has a network of addresses could come from millions of them."""
    make_key(tmp_path / "key")
    with zmq.Context() as context:
        handshakes = Handshakes(context, load_key(tmp_path / "key"))
        with caplog.at_level(logging.WARNING):
            for number in range(2500):
                for _ in range(2):
                    handshakes._log(f"refused 2001:db8::{number:x}")
        handshakes.stop()
    told = [record.getMessage() for record in caplog.records if record.name == Handshakes.__module__]
    assert len(told) == 2500 == len(set(told))
    assert len(handshakes._logged) <= 1000
