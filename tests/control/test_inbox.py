"""An inbox and the outlets to it, between threads of one process: the kernel treats them as it treats processes."""

from __future__ import annotations

import logging
import os
import queue
import resource
import socket
import stat
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from omni_python.control import outlet as outlets
from omni_python.control.framing import MAX_FRAME, framed
from omni_python.control.inbox import Inbox
from omni_python.control.outlet import LocalOutlet
from omni_python.proto.errors import Unavailable
from omni_python.proto.messages import AbortMessage, ControlMessage, CreditMessage, encode_message
from tests.leftovers import none_kept_by_each_of, open_descriptors
from tests.waiting import wait_until

Received = queue.SimpleQueue[ControlMessage]


@pytest.fixture
def address() -> Iterator[str]:
    with tempfile.TemporaryDirectory(prefix="omni-test-") as folder:
        yield f"{folder}/socket"


@pytest.fixture
def inbox(address: str) -> Iterator[tuple[Inbox, Received]]:
    received: Received = queue.SimpleQueue()

    def handle(message: ControlMessage) -> None:
        if isinstance(message, AbortMessage) and message.request_id == "raise":
            raise RuntimeError("a bug in the handler")
        received.put(message)

    inbox = Inbox(address, handle)
    inbox.start()
    yield inbox, received
    inbox.stop()


class Held:
    """A handler that holds up its inbox until it is let go."""

    def __init__(self) -> None:
        self.received: Received = queue.SimpleQueue()
        self.go_on = threading.Event()

    def __call__(self, message: ControlMessage) -> None:
        assert self.go_on.wait(20)
        self.received.put(message)


def test_messages_of_many_threads_arrive_whole_and_in_order(inbox: tuple[Inbox, Received]) -> None:
    shared = LocalOutlet(inbox[0].address)
    own = LocalOutlet(inbox[0].address)

    def send(thread: int) -> None:
        for number in range(200):
            (own if thread == 3 else shared).send(CreditMessage(thread, "shm", [number]))

    threads = [threading.Thread(target=send, args=(thread,)) for thread in range(4)]
    for thread in threads:
        thread.start()
    seen: dict[int, list[int]] = {thread: [] for thread in range(4)}
    for _ in range(800):
        message = inbox[1].get(timeout=5)
        assert isinstance(message, CreditMessage)
        seen[message.epoch].append(message.generations[0])
    assert all(numbers == list(range(200)) for numbers in seen.values())
    shared.close()
    own.close()


def test_garbage_and_failing_handlers_do_not_end_the_inbox(inbox: tuple[Inbox, Received]) -> None:
    outlet = LocalOutlet(inbox[0].address)
    for garbage in (b"", b"\xc1", b"\x93\x01", b"\x90", b"x" * 1000, b"\x94\xabAbortMessage\x01\x02\x03"):
        outlet.forward(garbage)
    outlet.send(AbortMessage(1, "raise"))
    outlet.send(AbortMessage(1, "fine"))
    assert inbox[1].get(timeout=5) == AbortMessage(1, "fine")
    assert inbox[1].empty()
    outlet.close()


def test_streams_that_are_none_do_no_harm(inbox: tuple[Inbox, Received], caplog: pytest.LogCaptureFixture) -> None:
    too_long = (MAX_FRAME + 1).to_bytes(4, "big")
    with caplog.at_level(logging.WARNING):
        for garbage in (b"", b"\xff", too_long, b"\0\0\0\1", b"GET / HTTP/1.1\r\n\r\n", os.urandom(5000)):
            with socket.socket(socket.AF_UNIX) as raw, suppress(OSError):
                raw.connect(inbox[0].address)
                raw.sendall(garbage)
        outlet = LocalOutlet(inbox[0].address)
        outlet.send(AbortMessage(1, "after"))
        assert inbox[1].get(timeout=20) == AbortMessage(1, "after")
    assert any(f"closed a connection: a message of {MAX_FRAME + 1} bytes" in text for text in caplog.messages)
    outlet.close()


def test_a_message_may_come_in_any_parts(inbox: tuple[Inbox, Received]) -> None:
    stream = b"".join(framed(encode_message(AbortMessage(1, name))) for name in ("first", "second"))
    with socket.socket(socket.AF_UNIX) as raw:
        raw.connect(inbox[0].address)
        for byte in stream:
            raw.send(bytes([byte]))
    assert [inbox[1].get(timeout=5) for _ in range(2)] == [AbortMessage(1, "first"), AbortMessage(1, "second")]


def test_long_messages_and_many_wait_for_a_busy_reader(address: str) -> None:
    """Far more than the kernel takes: nothing is lost, and nothing overtakes."""
    held = Held()
    inbox = Inbox(address, held)
    inbox.start()
    outlet = LocalOutlet(address)
    sent: list[ControlMessage] = []
    for number in range(300):
        sent.append(AbortMessage(number, "x" * (3_000_000 if number == 20 else 40 * number)))
        outlet.send(sent[-1])
    assert not outlet.try_send(AbortMessage(1, "that would have to wait"))
    held.go_on.set()
    assert [held.received.get(timeout=10) for _ in sent] == sent
    wait_until(lambda: outlet.try_send(AbortMessage(1, "now there is room")))
    assert held.received.get(timeout=5) == AbortMessage(1, "now there is room")
    outlet.close()
    inbox.stop()


def test_what_waits_is_bounded_and_a_reader_that_stops_is_told(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outlets, "BACKLOG", 100_000)
    monkeypatch.setattr(outlets, "SEND_TIMEOUT", 0.2)
    held = Held()
    inbox = Inbox(address, held)
    inbox.start()
    outlet = LocalOutlet(address)
    message = AbortMessage(1, "x" * 10_000)
    with pytest.raises(Unavailable, match="stopped reading"):
        for _ in range(200):
            outlet.send(message)
    held.go_on.set()
    outlet.close(linger=5)
    with pytest.raises(Unavailable, match="closed"):
        outlet.send(message)
    assert not outlet.try_send(message)
    assert held.received.get(timeout=5) == message
    inbox.stop()


def test_closing_does_not_wait_for_a_reader_that_is_held_up(address: str) -> None:
    held = Held()
    inbox = Inbox(address, held)
    inbox.start()
    before = set(threading.enumerate())
    outlet = LocalOutlet(address)
    for _ in range(2000):
        outlet.send(AbortMessage(1, "x" * 1000))
    [flusher] = {thread for thread in threading.enumerate() if thread.name == "omni-outlet"} - before
    closing = threading.Thread(target=outlet.close, args=(0.1,))
    closing.start()
    closing.join(15)
    assert not closing.is_alive() and not flusher.is_alive()
    held.go_on.set()
    inbox.stop()


def test_what_is_sent_to_nobody_is_lost_without_an_error_and_a_successor_is_found(address: str) -> None:
    outlet = LocalOutlet(address)
    outlet.send(AbortMessage(1, "nobody is there yet"))
    for number in range(3):
        received: Received = queue.SimpleQueue()
        inbox = Inbox(address, received.put)
        inbox.start()
        outlet.send(AbortMessage(number, "you"))
        assert received.get(timeout=5) == AbortMessage(number, "you")
        inbox.stop()
        outlet.send(AbortMessage(number, "gone again"))
    outlet.close()


def test_a_reader_that_dies_takes_what_waits_with_it(address: str) -> None:
    """The first of two listeners never reads; the second gets nothing that was meant for that one."""
    with socket.socket(socket.AF_UNIX) as first:
        first.bind(address)
        first.listen()
        outlet = LocalOutlet(address)
        for number in range(1000):
            outlet.send(AbortMessage(number, "x" * 1000))
    received: Received = queue.SimpleQueue()
    inbox = Inbox(address, received.put)
    inbox.start()
    last = AbortMessage(1, "last")
    end = time.monotonic() + 5
    while received.empty() and time.monotonic() < end:  # until the flusher has seen that the first is gone
        outlet.send(last)
        time.sleep(0.01)
    assert received.get(timeout=10) == last
    outlet.close()
    inbox.stop()


def test_another_thread_can_take_over_where_a_handler_is_held_up(address: str) -> None:
    held = Held()
    seen: Received = queue.SimpleQueue()

    def handle(message: ControlMessage) -> None:
        if message == first:
            held(message)
        else:
            seen.put(message)

    first = AbortMessage(0, "first")
    inbox = Inbox(address, handle)
    inbox.start()
    outlet = LocalOutlet(address)
    rest: list[ControlMessage] = [AbortMessage(number, "later") for number in range(50)]
    for message in (first, *rest):
        outlet.send(message)
    with pytest.raises(queue.Empty):
        seen.get(timeout=0.1)
    inbox.replace_thread()
    assert [seen.get(timeout=5) for _ in rest] == rest
    held.go_on.set()
    assert held.received.get(timeout=5) == first
    outlet.send(AbortMessage(99, "only one thread reads"))
    assert seen.get(timeout=5) == AbortMessage(99, "only one thread reads")
    outlet.close()
    inbox.stop()


def test_a_held_up_thread_goes_on_where_no_other_could_take_over(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    held = Held()
    inbox = Inbox(address, held)
    inbox.start()
    outlet = LocalOutlet(address)
    messages: list[ControlMessage] = [AbortMessage(number, "x") for number in range(5)]
    for message in messages:
        outlet.send(message)
    with monkeypatch.context() as patch:
        no_threads_left(patch)
        with pytest.raises(RuntimeError, match="can't start new thread"):
            inbox.replace_thread()
    held.go_on.set()
    assert [held.received.get(timeout=5) for _ in messages] == messages
    outlet.close()
    inbox.stop()


@pytest.mark.parametrize("size", [1_000, 100_000, 3_000_000])
def test_an_outlet_works_again_once_a_thread_is_left_for_what_waits(
    address: str, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sends are refused while none is; the peer gets what was not, and never a part of a message."""
    held = Held()
    inbox = Inbox(address, held)
    inbox.start()
    outlet = LocalOutlet(address)
    sent: list[ControlMessage] = []

    def send(number: int) -> None:
        message = AbortMessage(number, "x" * size)
        outlet.send(message)
        sent.append(message)

    with monkeypatch.context() as patch:
        no_threads_left(patch)
        with pytest.raises(Unavailable, match="can't start new thread"):
            for number in range(10_000):
                send(number)
    for number in range(20):
        send(20_000 + number)
    held.go_on.set()
    outlet.close(linger=10)
    received = [held.received.get(timeout=10) for _ in sent]
    assert sorted(map(repr, received)) == sorted(map(repr, sent))
    inbox.stop()


def no_threads_left(patch: pytest.MonkeyPatch) -> None:
    """As in a container at its limit of processes."""

    def start(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    patch.setattr(threading.Thread, "start", start)


def test_senders_have_their_turn_beside_one_that_floods(address: str) -> None:
    """What another sender has sent is handled before the rest of a long backlog."""
    held = Held()
    inbox = Inbox(address, held)
    inbox.start()
    flood, other = LocalOutlet(address), LocalOutlet(address)
    for number in range(5000):
        flood.send(AbortMessage(number, "x" * 1000))
    other.send(AbortMessage(1, "other"))
    held.go_on.set()
    before = 0
    while held.received.get(timeout=5) != AbortMessage(1, "other"):
        before += 1
    assert before < 1000
    flood.close()
    other.close()
    inbox.stop()


def test_an_inbox_that_stops_closes_everything(address: str) -> None:
    received: Received = queue.SimpleQueue()
    with none_kept_by_each_of(10):
        for number in range(10):
            inbox, outlet = Inbox(address, received.put), LocalOutlet(address)
            inbox.start()
            outlet.send(AbortMessage(number, "hello"))
            assert received.get(timeout=5) == AbortMessage(number, "hello")
            inbox.stop()
            outlet.close()


def test_connections_that_end_are_let_go(inbox: tuple[Inbox, Received]) -> None:
    before = open_descriptors()
    for number in range(20):
        outlet = LocalOutlet(inbox[0].address)
        outlet.send(AbortMessage(number, "hello"))
        assert inbox[1].get(timeout=5) == AbortMessage(number, "hello")
        outlet.close()
    wait_until(lambda: open_descriptors() < before + 10)


def test_a_process_without_file_descriptors_left_hears_those_that_it_knows(
    inbox: tuple[Inbox, Received], caplog: pytest.LogCaptureFixture
) -> None:
    known, new = LocalOutlet(inbox[0].address), LocalOutlet(inbox[0].address)
    known.send(AbortMessage(1, "known"))
    assert inbox[1].get(timeout=5) == AbortMessage(1, "known")
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    next_one = os.dup(0)
    resource.setrlimit(resource.RLIMIT_NOFILE, (next_one + 1, before[1]))
    os.close(next_one)  # one is left, which the sender of the next message takes
    start = time.monotonic()
    try:
        with caplog.at_level(logging.WARNING):
            new.send(AbortMessage(1, "new"))
            known.send(AbortMessage(1, "still heard"))
            assert inbox[1].get(timeout=5) == AbortMessage(1, "still heard")
            time.sleep(0.3)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    assert inbox[1].get(timeout=5) == AbortMessage(1, "new")
    refused = sum("could not accept" in text for text in caplog.messages)
    assert 1 <= refused <= 10 + 25 * (time.monotonic() - start), "it spins"
    known.close()
    new.close()


def test_stopping_removes_the_socket(address: str) -> None:
    inbox = Inbox(address, lambda message: None)
    inbox.start()
    assert Path(address).is_socket()
    inbox.stop()
    assert not Path(address).exists()


def test_only_this_user_may_connect(inbox: tuple[Inbox, Received]) -> None:
    assert stat.S_IMODE(Path(inbox[0].address).stat().st_mode) == 0o600


def test_what_is_forwarded_is_what_was_encoded(inbox: tuple[Inbox, Received]) -> None:
    outlet = LocalOutlet(inbox[0].address)
    outlet.forward(encode_message(AbortMessage(1, "from another host")))
    assert inbox[1].get(timeout=5) == AbortMessage(1, "from another host")
    outlet.close()
