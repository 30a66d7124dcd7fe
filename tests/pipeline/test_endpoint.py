"""Real endpoints where something goes wrong: handlers fail, peers die or do not read, descriptors run out."""

from __future__ import annotations

import gc
import os
import queue
import resource
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from omni_python.control import inbox
from omni_python.control import network as networks
from omni_python.control.curve import load_key, make_key
from omni_python.control.framing import framed
from omni_python.control.network import NetworkPlace
from omni_python.pipeline import credits
from omni_python.pipeline.endpoint import Endpoint
from omni_python.proto.errors import OmniError, Unavailable
from omni_python.proto.messages import (
    AbortMessage,
    ControlMessage,
    CreditMessage,
    DataReadyMessage,
    Envelope,
    encode_message,
)
from omni_python.proto.payload import Payload
from omni_python.proto.refs import NcclRef
from omni_python.relay.base import RelaySettings
from tests.leftovers import none_kept_by_each_of, our_threads

POOL = 4 << 20


class Block(Payload):
    data: np.ndarray


@pytest.fixture
def place(tmp_path: Path) -> NetworkPlace:
    make_key(tmp_path / "key")
    return NetworkPlace("a", "127.0.0.1", free_port(), load_key(tmp_path / "key"), 5)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
        return port


@contextmanager
def endpoint(
    directory: Path, handle: Callable[[ControlMessage], None], backend: str = "shm", place: NetworkPlace | None = None
) -> Iterator[Endpoint]:
    end = Endpoint(directory, handle, RelaySettings(backend, POOL), place=place)
    end.start()
    try:
        yield end
    finally:
        end.stop()


def introduce(first: Endpoint, second: Endpoint) -> None:
    first.connect(second.epoch, second.address, second.carrier.site)
    second.connect(first.epoch, first.address, first.carrier.site)


def threads(name: str) -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == name]


def until(is_so: Callable[[], bool]) -> None:
    end = time.monotonic() + 10
    while not is_so() and time.monotonic() < end:
        gc.collect()
        time.sleep(0.01)
    assert is_so()


@contextmanager
def no_descriptors() -> Iterator[None]:
    """None can be had meanwhile."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    next_one = os.dup(0)
    os.close(next_one)
    resource.setrlimit(resource.RLIMIT_NOFILE, (next_one, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


@pytest.mark.parametrize("nbytes", [20_000, 200_000], ids=["copied", "viewed"])
def test_slots_come_back_from_a_handler_that_fails(
    directory: Path, nbytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inbox.log, "disabled", True)  # what is logged would keep the payload, in its traceback
    handled: queue.SimpleQueue[int] = queue.SimpleQueue()

    def handle(message: ControlMessage) -> None:
        assert isinstance(message, DataReadyMessage) and message.payload is not None
        payload = reader.carrier.unpack(message.epoch, message.payload)
        assert isinstance(payload, Block)
        handled.put(len(payload.data))
        raise RuntimeError("a bug in the handler")

    with endpoint(directory, lambda message: None) as writer, endpoint(directory, handle) as reader:
        introduce(writer, reader)
        for number in range(5):
            envelope = writer.carrier.pack(Block(np.full(nbytes, number, np.uint8)), [reader.epoch])
            writer.send(reader.epoch, DataReadyMessage(writer.epoch, str(number), "a", "b", envelope))
        assert [handled.get(timeout=10) for _ in range(5)] == [nbytes] * 5
        until(lambda: writer.carrier.slots_in_use == 0)


def test_credits_survive_a_lack_of_descriptors(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The reader has no connection with the writer yet, and none can be made when the credits are due."""
    monkeypatch.setattr(credits, "RETRY", 0.05)
    held: queue.SimpleQueue[Payload] = queue.SimpleQueue()

    def handle(message: ControlMessage) -> None:
        assert isinstance(message, DataReadyMessage) and message.payload is not None
        if message.target == "hold":
            held.put(reader.carrier.unpack(message.epoch, message.payload))
        else:
            reader.carrier.decline(message.epoch, message.payload)
            held.put(Block(np.zeros(1)))

    with endpoint(directory, lambda message: None) as writer, endpoint(directory, handle) as reader:
        introduce(writer, reader)

        def send(target: str) -> Payload:
            envelope = writer.carrier.pack(Block(np.zeros(200_000, np.uint8)), [reader.epoch])
            writer.send(reader.epoch, DataReadyMessage(writer.epoch, "0", "a", target, envelope))
            return held.get(timeout=10)

        viewed = send("hold")
        with no_descriptors():
            send("decline")
            del viewed
            with pytest.raises(Unavailable, match="cannot be reached"):
                reader.send(writer.epoch, AbortMessage(reader.epoch, "0"))
            time.sleep(0.2)
            assert writer.carrier.slots_in_use == 2
        until(lambda: writer.carrier.slots_in_use == 0)


def test_what_still_comes_of_a_dead_peer_leaves_nothing_behind(directory: Path) -> None:
    """Its messages may be read after the news of its death; their bytes never come."""
    failed: queue.SimpleQueue[OmniError] = queue.SimpleQueue()

    def handle(message: ControlMessage) -> None:
        assert isinstance(message, DataReadyMessage) and message.payload is not None
        try:
            end.carrier.unpack(message.epoch, message.payload)
        except OmniError as error:
            failed.put(error)

    before = threads("omni-transfer")
    with endpoint(directory, handle, "nccl") as end, socket.socket(socket.AF_UNIX) as dead:
        dead.connect(end.address)
        for epoch in range(100, 110):
            end.connect(epoch, str(directory / "nobody"))
            end.forget(epoch)
            late = DataReadyMessage(epoch, "0", "a", "b", Envelope("Block", b"", ref=NcclRef(1, 100)))
            dead.sendall(framed(encode_message(late)))
            assert "is gone" in str(failed.get(timeout=10))
        assert threads("omni-transfer") == before


def test_a_peer_is_reconnected_without_holding_up_others(
    directory: Path, place: NetworkPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On another host, where nobody takes what is sent."""
    monkeypatch.setattr(networks, "HIGH_WATER_MARK", 5)
    monkeypatch.setattr(networks, "SEND_TIMEOUT", 4)
    heard: queue.SimpleQueue[ControlMessage] = queue.SimpleQueue()
    done: queue.SimpleQueue[str] = queue.SimpleQueue()
    nobody, nowhere = 7, f"tcp://127.0.0.1:{free_port()}"

    def send() -> None:
        with pytest.raises(Unavailable, match="stopped reading"):
            while True:
                sender.send(nobody, AbortMessage(1, "nobody hears this"))
        done.put("given up")

    def reconnect() -> None:
        sender.reconnect(nobody, nowhere)
        done.put("reconnected")

    with endpoint(directory, lambda message: None, place=place) as sender, endpoint(directory, heard.put) as other:
        sender.connect(nobody, nowhere)
        busy = [threading.Thread(target=send), threading.Thread(target=reconnect)]
        for thread in busy:
            thread.start()
            time.sleep(0.1)
        sender.connect(other.epoch, other.address)
        sender.send(other.epoch, AbortMessage(1, "you"))
        assert heard.get(timeout=10) == AbortMessage(1, "you")
        assert done.empty(), "it has waited for the one that nobody reads"
        assert {done.get(timeout=10) for _ in busy} == {"given up", "reconnected"}


def test_a_peer_can_be_reconnected_after_that_has_failed(
    directory: Path, place: NetworkPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise OSError("no socket can be had")

    heard: queue.SimpleQueue[ControlMessage] = queue.SimpleQueue()
    with endpoint(directory, lambda message: None, place=place) as sender, endpoint(directory, heard.put) as other:
        sender.connect(other.epoch, f"tcp://127.0.0.1:{free_port()}")
        with monkeypatch.context() as patch:
            patch.setattr(networks.Network, "outlet", fail)
            for _ in range(2):
                with pytest.raises(OSError, match="no socket"):
                    sender.reconnect(other.epoch, f"tcp://127.0.0.1:{free_port()}")
        sender.reconnect(other.epoch, other.address)
        sender.send(other.epoch, AbortMessage(1, "you"))
        assert heard.get(timeout=10) == AbortMessage(1, "you")


def test_an_endpoint_that_cannot_be_made_leaves_nothing(directory: Path, place: NetworkPlace) -> None:
    place = replace(place, address="192.0.2.1")
    missing = str(directory / "missing" / "socket")
    with none_kept_by_each_of(20):
        for _ in range(20):
            with pytest.raises(OmniError, match="no address of this machine"):
                Endpoint(directory, lambda message: None, RelaySettings("shm", POOL), place=place)
    with none_kept_by_each_of(20):
        for _ in range(20):
            with pytest.raises(OmniError, match="cannot listen"):
                Endpoint(directory, lambda message: None, RelaySettings("shm", POOL), missing)
    assert list(directory.iterdir()) == []


def test_an_endpoint_stops_while_others_send_to_it(directory: Path) -> None:
    """Peers that flood it, and one that has sent half a message: no thread, descriptor or socket is left."""
    running = our_threads()
    with none_kept_by_each_of(12):
        for _ in range(12):
            stop_amid_a_flood(directory)
    until(lambda: not our_threads() - running)
    assert list(directory.iterdir()) == []


def stop_amid_a_flood(directory: Path) -> None:
    stop = threading.Event()
    heard = threading.Semaphore(0)
    with endpoint(directory, lambda message: None) as sender, socket.socket(socket.AF_UNIX) as half:
        with endpoint(directory, lambda message: heard.release()) as end:
            introduce(sender, end)
            half.connect(end.address)
            half.sendall(framed(encode_message(CreditMessage(1, "shm", [1])))[:-1])

            def flood() -> None:
                while not stop.is_set():
                    sender.send(end.epoch, AbortMessage(sender.epoch, "x" * 1000))

            flooding = [threading.Thread(target=flood) for _ in range(2)]
            for thread in flooding:
                thread.start()
            for _ in range(200):
                assert heard.acquire(timeout=10)
        stop.set()
        for thread in flooding:
            thread.join(10)
            assert not thread.is_alive()
