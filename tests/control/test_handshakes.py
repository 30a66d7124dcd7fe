"""What is remembered of those who were refused, and what outlives a failure; whom it refuses is tested elsewhere."""

from __future__ import annotations

import logging
import threading
from pathlib import Path

import pytest
import zmq
from zmq.utils import z85

from omni_python.control import safely
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


def test_it_goes_on_after_a_question_and_a_broken_connection_that_it_could_not_see_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(safely, "PAUSE", 0.01)
    make_key(tmp_path / "key")
    key = load_key(tmp_path / "key")
    broken = threading.Semaphore(0)

    def on_broken() -> None:
        broken.release()
        raise RuntimeError("a bug in what is told")

    with zmq.Context() as context:
        handshakes = Handshakes(context, key)
        with context.socket(zmq.PUSH) as sender:
            sender.curve_serverkey, sender.curve_publickey, sender.curve_secretkey = key.public, key.public, key.secret
            handshakes.watch(sender, "there", on_broken)
            for _ in range(2):
                with context.socket(zmq.PULL) as listener:
                    listener.curve_server, listener.curve_secretkey = True, key.secret
                    port = listener.bind_to_random_port("tcp://127.0.0.1")
                    sender.connect(f"tcp://127.0.0.1:{port}")
                    sender.send(b"hello")
                    assert listener.poll(10_000)
                assert broken.acquire(timeout=10)
                sender.disconnect(f"tcp://127.0.0.1:{port}")
            assert [ask(context, credentials) for credentials in (b"odd", z85.decode(key.public))] == [b"400", b"200"]
            sender.disable_monitor()
        handshakes.stop()
    assert "a bug in what is told" in caplog.text


def ask(context: zmq.Context[zmq.Socket[bytes]], credentials: bytes) -> bytes:
    """As libzmq asks: the status of the answer."""
    with context.socket(zmq.REQ) as asker:
        asker.linger = 0
        asker.connect("inproc://zeromq.zap.01")
        asker.send_multipart([b"1.0", b"1", b"omni", b"::1", b"", b"CURVE", credentials])
        assert asker.poll(10_000), "no answer"
        _, _, status, *_ = asker.recv_multipart()
        return status
