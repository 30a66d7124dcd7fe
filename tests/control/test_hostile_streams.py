"""Streams that nobody of ours would send, to a listening inbox: they cost little, and others are heard meanwhile."""

from __future__ import annotations

import queue
import resource
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from omni_python.control import outlet as outlets
from omni_python.control.framing import MAX_FRAME, Deframer, framed
from omni_python.control.inbox import Inbox
from omni_python.control.outlet import LocalOutlet
from omni_python.proto.errors import InvalidArgument, OmniError
from omni_python.proto.messages import AbortMessage, ControlMessage, CreditMessage, decode_message, encode_message
from tests.fuzz.targets import inbox as connections_used_in_turn
from tests.leftovers import none_kept_by_each_of, open_descriptors, our_threads

Received = queue.SimpleQueue[ControlMessage]


@pytest.fixture
def listening(directory: Path) -> Iterator[tuple[Inbox, Received]]:
    """Leaves no thread."""
    before = our_threads()
    received: Received = queue.SimpleQueue()
    inbox = Inbox(f"{directory}/socket", received.put)
    inbox.start()
    yield inbox, received
    inbox.stop()
    assert _until(lambda: not our_threads() - before)


def _resident() -> int:
    """Bytes of this process."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def _connected(inbox: Inbox, stack: ExitStack) -> socket.socket:
    connection = stack.enter_context(socket.socket(socket.AF_UNIX))
    connection.connect(inbox.address)
    return connection


def _until(holds: Callable[[], bool]) -> bool:
    end = time.monotonic() + 20
    while not holds() and time.monotonic() < end:
        time.sleep(0.02)
    return holds()


messages = st.one_of(
    st.builds(AbortMessage, st.integers(0, 2**62), st.text(max_size=30)),
    st.builds(CreditMessage, st.integers(0, 2**62), st.just("shm"), st.lists(st.integers(0, 99), max_size=40)),
)
frames = st.one_of(messages.map(encode_message), messages.map(encode_message), st.binary(max_size=20)).map(framed)
ends = st.one_of(
    st.just(b""),
    st.integers(MAX_FRAME + 1, 2**32 - 1).map(lambda length: length.to_bytes(4, "big") + b"more"),
    frames.map(lambda frame: frame[: len(frame) // 2]),
    st.binary(max_size=40),
)
streams = st.builds(lambda parts, end: b"".join(parts) + end, st.lists(frames, max_size=6), ends)


@settings(max_examples=60, suppress_health_check=list(HealthCheck))
@given(st.data(), st.lists(streams, min_size=1, max_size=4))
def test_whatever_the_cuts_whole_messages_arrive_in_order(data: st.DataObject, rests: list[bytes]) -> None:
    """Several connections are used in turn, a part of a stream at a time, and closed at its end or left open."""
    steps = bytearray()
    while any(rests):
        which = data.draw(st.sampled_from([which for which, rest in enumerate(rests) if rest]))
        part = rests[which][: data.draw(st.integers(1, 255))]
        rests[which] = rests[which][len(part) :]
        steps += bytes([which, len(part)]) + part
        if not rests[which] and data.draw(st.booleans()):
            steps += bytes([which, 0])
    connections_used_in_turn(bytes(steps))


def test_thousands_of_connections_with_half_a_message_each(listening: tuple[Inbox, Received]) -> None:
    inbox, received = listening
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard if hard == resource.RLIM_INFINITY else min(hard, 10_000), hard))
    number = min(2000, (resource.getrlimit(resource.RLIMIT_NOFILE)[0] - open_descriptors() - 100) // 2)
    stream = framed(encode_message(AbortMessage(1, "whole at last")))
    before, descriptors = _resident(), open_descriptors()
    try:
        with ExitStack() as stack:
            other = LocalOutlet(inbox.address)
            stack.callback(other.close)
            connections = [_connected(inbox, stack) for _ in range(number)]
            for connection in connections:
                connection.sendall(stream[:-1])
            other.send(AbortMessage(2, "other"))
            assert received.get(timeout=20) == AbortMessage(2, "other") and received.empty()
            assert _until(lambda: open_descriptors() > descriptors + 1.9 * number)
            assert _resident() - before < number * 16_384
            for connection in connections:
                connection.sendall(stream[-1:])
            assert [received.get(timeout=20) for _ in connections] == [AbortMessage(1, "whole at last")] * number
        assert _until(lambda: open_descriptors() < descriptors + 0.1 * number)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_length_costs_nothing_before_its_bytes_come(listening: tuple[Inbox, Received]) -> None:
    inbox, received = listening
    before = _resident()
    with ExitStack() as stack:
        for _ in range(100):
            _connected(inbox, stack).sendall(MAX_FRAME.to_bytes(4, "big") + bytes(1000))
        last = _connected(inbox, stack)
        last.sendall(framed(encode_message(AbortMessage(1, "after all"))))
        assert received.get(timeout=20) == AbortMessage(1, "after all")
        assert _resident() - before < 32 << 20


def test_one_that_sends_a_byte_now_and_then_holds_up_nobody(listening: tuple[Inbox, Received]) -> None:
    inbox, received = listening
    with ExitStack() as stack:
        slow, other = _connected(inbox, stack), LocalOutlet(inbox.address)
        stack.callback(other.close)
        for number, byte in enumerate(framed(encode_message(AbortMessage(1, "slow")))):
            assert received.empty()
            other.send(AbortMessage(2, str(number)))
            assert received.get(timeout=20) == AbortMessage(2, str(number))
            slow.send(bytes([byte]))
        assert received.get(timeout=20) == AbortMessage(1, "slow")


def test_a_flood_waits_in_the_kernel_while_the_reader_is_held_up(directory: Path) -> None:
    go_on, received = threading.Event(), queue.SimpleQueue[ControlMessage]()

    def handle(message: ControlMessage) -> None:
        assert go_on.wait(30)
        received.put(message)

    inbox = Inbox(f"{directory}/socket", handle)
    inbox.start()
    frame = framed(encode_message(AbortMessage(1, "x" * 1000)))
    before, sent = _resident(), 0
    with ExitStack() as stack:
        connections = [_connected(inbox, stack) for _ in range(20)]
        for connection in connections:
            connection.settimeout(0.1)
            with suppress(TimeoutError):
                for _ in range(100_000):
                    connection.sendall(frame)
                    sent += len(frame)
        assert sent < len(connections) << 20 and _resident() - before < 32 << 20
        go_on.set()
    for _ in range(sent // len(frame)):
        assert received.get(timeout=20) == AbortMessage(1, "x" * 1000)
    inbox.stop()


def test_what_is_too_long_fails_at_its_sender_and_others_are_heard(listening: tuple[Inbox, Received]) -> None:
    """The receiver could but end the stream, with all that others have sent on it."""
    inbox, received = listening
    outlet = LocalOutlet(inbox.address)
    outlet.send(AbortMessage(1, "before"))
    too_long = AbortMessage(1, "x" * MAX_FRAME)
    for send in (outlet.send, outlet.try_send, lambda message: outlet.forward(encode_message(message))):
        with pytest.raises(InvalidArgument, match=f"a message of [0-9]+ bytes; {MAX_FRAME} is the most"):
            send(too_long)
    assert outlet.try_send(AbortMessage(1, "after"))
    assert [received.get(timeout=20) for _ in range(2)] == [AbortMessage(1, "before"), AbortMessage(1, "after")]
    outlet.close()


@settings(max_examples=30, suppress_health_check=list(HealthCheck))
@given(st.lists(st.integers(0, 60_000), min_size=1, max_size=30), st.lists(st.integers(0, 100_000), max_size=6))
def test_readers_that_go_at_any_byte_tear_no_message(sizes: list[int], reads: list[int]) -> None:
    """A reader of `reads` bytes after the other, each of its own connection, and then one that reads to the end: what
    a connection brings begins with a whole message, and none comes twice or late."""
    with tempfile.TemporaryDirectory(prefix="omni-test-") as made, pytest.MonkeyPatch.context() as patch:
        patch.setattr(outlets, "_KERNEL_BUFFER", 4096)  # so that much has to wait
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(f"{made}/socket")
        listener.listen(20)
        listener.settimeout(0.05)
        done, heard = threading.Event(), list[bytes]()
        reader = threading.Thread(target=_read_in_turn, args=(listener, reads, done, heard))
        reader.start()
        outlet = LocalOutlet(f"{made}/socket")
        for number, size in enumerate(sizes):
            outlet.send(AbortMessage(number, "x" * size))
        outlet.close(linger=20)
        done.set()
        reader.join(20)
        listener.close()
    found: list[bytes] = []
    for stream in heard:
        Deframer().feed(stream, found.append)
    messages = [decode_message(frame) for frame in found]
    assert messages == sorted(
        (AbortMessage(message.epoch, "x" * sizes[message.epoch]) for message in messages),
        key=lambda message: message.epoch,
    )
    assert len({message.epoch for message in messages}) == len(messages)
    if not reads:
        assert len(messages) == len(sizes)


def _read_in_turn(listener: socket.socket, reads: list[int], done: threading.Event, heard: list[bytes]) -> None:
    limits = iter(reads)
    while True:
        is_over = done.is_set()  # looked at first: what was sent before it was set is waiting by then
        try:
            connection, _ = listener.accept()
        except TimeoutError:
            if is_over:
                return
            continue
        stream, limit = b"", next(limits, 1 << 30)
        with connection:
            while len(stream) < limit and (part := connection.recv(min(65536, limit - len(stream)))):
                stream += part
        heard.append(stream)


def test_a_socket_or_a_link_that_was_left_there_is_replaced(directory: Path) -> None:
    precious, address = directory / "precious", directory / "socket"
    precious.write_text("precious")
    dead = socket.socket(socket.AF_UNIX)
    dead.bind(str(address))
    dead.close()
    for _ in range(2):
        received: Received = queue.SimpleQueue()
        inbox = Inbox(str(address), received.put)
        inbox.start()
        outlet = LocalOutlet(str(address))
        outlet.send(AbortMessage(1, "you"))
        assert received.get(timeout=20) == AbortMessage(1, "you")
        outlet.close()
        inbox.stop()
        address.symlink_to(precious)
    assert precious.read_text() == "precious" and precious.stat().st_nlink == 1


def test_where_nobody_can_listen_the_user_is_told_why(directory: Path) -> None:
    (directory / "taken").mkdir()
    for name, why in (("taken", "directory"), ("not/there", "No such file"), ("x" * 120, "too long")):
        with none_kept_by_each_of(10):
            for _ in range(10):
                with pytest.raises(OmniError, match=f"cannot listen at {directory}/{name}: .*{why}"):
                    Inbox(f"{directory}/{name}", lambda message: None)


def test_one_that_stops_late_leaves_its_successor_where_it_is(directory: Path) -> None:
    received: Received = queue.SimpleQueue()
    first = Inbox(f"{directory}/socket", lambda message: None)
    first.start()
    second = Inbox(f"{directory}/socket", received.put)
    second.start()
    first.stop()
    outlet = LocalOutlet(f"{directory}/socket")
    outlet.send(AbortMessage(1, "you"))
    assert received.get(timeout=20) == AbortMessage(1, "you")
    outlet.close()
    second.stop()
    assert not (directory / "socket").exists()
