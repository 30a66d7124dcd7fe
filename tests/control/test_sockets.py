"""Sockets between threads of one process, which ZMQ treats as it treats processes."""

from __future__ import annotations

import os
import queue
import socket
import stat
import tempfile
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
import zmq

from omni_python.control.sockets import MAX_FRAME, Inbox, Outlet
from omni_python.proto.errors import Unavailable
from omni_python.proto.messages import AbortMessage, ControlMessage, CreditMessage

Received = queue.SimpleQueue[ControlMessage]


@pytest.fixture
def context() -> Iterator[zmq.Context[zmq.Socket[bytes]]]:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    yield context
    context.destroy(linger=0)


@pytest.fixture
def address() -> Iterator[str]:
    with tempfile.TemporaryDirectory(prefix="omni-test-") as folder:
        yield f"ipc://{folder}/socket"


@pytest.fixture
def inbox(context: zmq.Context[zmq.Socket[bytes]], address: str) -> Iterator[tuple[Inbox, Received]]:
    received: Received = queue.SimpleQueue()

    def handle(message: ControlMessage) -> None:
        if isinstance(message, AbortMessage) and message.request_id == "raise":
            raise RuntimeError("a bug in the handler")
        received.put(message)

    inbox = Inbox(context, address, handle)
    inbox.start()
    yield inbox, received
    inbox.stop()


def test_messages_of_many_threads_arrive_whole_and_in_order(
    context: zmq.Context[zmq.Socket[bytes]], inbox: tuple[Inbox, Received]
) -> None:
    outlet = Outlet(context, inbox[0].address)

    def send(thread: int) -> None:
        for number in range(200):
            outlet.send(CreditMessage(thread, "shm", [number]))

    threads = [threading.Thread(target=send, args=(thread,)) for thread in range(4)]
    for thread in threads:
        thread.start()
    seen: dict[int, list[int]] = {thread: [] for thread in range(4)}
    for _ in range(800):
        message = inbox[1].get(timeout=5)
        assert isinstance(message, CreditMessage)
        seen[message.epoch].append(message.generations[0])
    assert all(numbers == list(range(200)) for numbers in seen.values())
    outlet.close()


def test_garbage_and_failing_handlers_do_not_end_the_inbox(
    context: zmq.Context[zmq.Socket[bytes]], inbox: tuple[Inbox, Received]
) -> None:
    with context.socket(zmq.PUSH) as raw:
        raw.connect(inbox[0].address)
        for garbage in (b"\xc1", b"\x93\x01", b"\x90", b"x" * 1000, b"\x94\xabAbortMessage\x01\x02\x03"):
            raw.send(garbage)
        outlet = Outlet(context, inbox[0].address)
        outlet.send(AbortMessage(1, "raise"))
        outlet.send(AbortMessage(1, "fine"))
        assert inbox[1].get(timeout=5) == AbortMessage(1, "fine")
        outlet.close()
    assert inbox[1].empty()


def test_a_closed_outlet_says_so(context: zmq.Context[zmq.Socket[bytes]], address: str) -> None:
    outlet = Outlet(context, address)
    outlet.close()
    with pytest.raises(Unavailable, match="cannot be reached"):
        outlet.send(AbortMessage(1, "x"))


def test_stopping_removes_the_socket(context: zmq.Context[zmq.Socket[bytes]], address: str) -> None:
    inbox = Inbox(context, address, lambda message: None)
    inbox.start()
    path = Path(address.removeprefix("ipc://"))
    assert path.is_socket()
    inbox.stop()
    assert not path.exists()


def test_only_this_user_may_connect(inbox: tuple[Inbox, Received]) -> None:
    path = Path(inbox[0].address.removeprefix("ipc://"))
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_frame_that_is_too_long_is_dropped_and_others_go_on(
    context: zmq.Context[zmq.Socket[bytes]], inbox: tuple[Inbox, Received]
) -> None:
    outlet = Outlet(context, inbox[0].address)
    with context.socket(zmq.PUSH) as raw:
        raw.setsockopt(zmq.LINGER, 0)
        raw.connect(inbox[0].address)
        raw.send(bytes(MAX_FRAME + 1))
        outlet.send(AbortMessage(1, "after"))
        assert inbox[1].get(timeout=20) == AbortMessage(1, "after")
    assert inbox[1].empty()
    outlet.close()


def test_bytes_that_are_no_zmq_do_no_harm(
    context: zmq.Context[zmq.Socket[bytes]], inbox: tuple[Inbox, Received]
) -> None:
    for garbage in (b"", b"\xff", b"\xff\0\0\0\0\0\0\0\1\x7f", b"GET / HTTP/1.1\r\n\r\n", os.urandom(5000)):
        with socket.socket(socket.AF_UNIX) as raw, suppress(OSError):
            raw.connect(inbox[0].address.removeprefix("ipc://"))
            raw.sendall(garbage)
    outlet = Outlet(context, inbox[0].address)
    outlet.send(AbortMessage(1, "after"))
    assert inbox[1].get(timeout=20) == AbortMessage(1, "after")
    outlet.close()
