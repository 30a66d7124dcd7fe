"""Sockets between hosts, here at addresses of the loopback interface: who proves the key is heard, nobody else."""

from __future__ import annotations

import logging
import queue
import socket
import stat
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest
import zmq

from omni_python.cli import main
from omni_python.control.curve import CurveKey, load_key, make_key
from omni_python.control.framing import MAX_FRAME
from omni_python.control.inbox import Inbox
from omni_python.control.network import Network, NetworkPlace, own_address
from omni_python.control.outlet import LocalOutlet, Outlet
from omni_python.pipeline.endpoint import Endpoint
from omni_python.proto.errors import OmniError, Unavailable
from omni_python.proto.messages import AbortMessage, ControlMessage, encode_message
from omni_python.relay.base import RelaySettings
from tests.waiting import wait_until

ADDRESS = "127.0.0.21"
OTHERS = ("127.0.0.1", "127.0.0.20")
Connect = Callable[[CurveKey], Outlet]


@pytest.fixture
def key(tmp_path: Path) -> CurveKey:
    make_key(tmp_path / "key")
    return load_key(tmp_path / "key")


@pytest.fixture
def port() -> Iterator[int]:
    """A free one, at which nobody else listens meanwhile."""
    with ExitStack() as held:
        while True:
            with suppress(OSError), socket.create_server((ADDRESS, 0)) as free:
                number: int = free.getsockname()[1]
                for other in OTHERS:
                    held.enter_context(socket.socket()).bind((other, number))
                break
        yield number


@pytest.fixture
def heard(tmp_path: Path, key: CurveKey, port: int) -> Iterator[queue.SimpleQueue[ControlMessage]]:
    """What a process with the key hears that listens there."""
    network = Network(NetworkPlace("b", ADDRESS, port, key, 5))
    messages: queue.SimpleQueue[ControlMessage] = queue.SimpleQueue()
    inbox = Inbox(str(tmp_path / "s"), messages.put)
    inbox.start()
    inside = LocalOutlet(inbox.address)
    network.listen(inside.forward)
    yield messages
    network.close()
    inside.close()
    inbox.stop()


@pytest.fixture
def connect(port: int) -> Iterator[Connect]:
    """Connects, as a process of another host with that key."""
    networks: list[Network] = []
    outlets: list[Outlet] = []

    def connected(key: CurveKey) -> Outlet:
        networks.append(Network(NetworkPlace("a", "127.0.0.22", 0, key, 5)))
        outlets.append(networks[-1].outlet(f"tcp://{ADDRESS}:{port}"))
        return outlets[-1]

    yield connected
    for outlet, network in zip(outlets, networks, strict=True):
        outlet.close()
        network.close()


def test_who_has_the_key_is_heard(connect: Connect, heard: queue.SimpleQueue[ControlMessage], key: CurveKey) -> None:
    connect(key).send(AbortMessage(1, "r"))
    assert heard.get(timeout=10) == AbortMessage(1, "r")


def test_another_key_is_refused_and_logged(
    connect: Connect, heard: queue.SimpleQueue[ControlMessage], port: int, caplog: pytest.LogCaptureFixture
) -> None:
    wrong = CurveKey(*zmq.curve_keypair())
    with caplog.at_level(logging.WARNING):
        connect(wrong).send(AbortMessage(1, "r"))
        with pytest.raises(queue.Empty):
            heard.get(timeout=1)
        refusal = f"refused at tcp://{ADDRESS}:{port}: the other side did not prove the pipeline's key"
        wait_until(lambda: sum(refusal in text for text in caplog.messages) >= 2)
    assert sum(refusal in text for text in caplog.messages) == 2  # on both sides, and not again at each attempt


def test_a_client_with_the_public_half_alone_is_refused_and_logged(
    heard: queue.SimpleQueue[ControlMessage], key: CurveKey, port: int, caplog: pytest.LogCaptureFixture
) -> None:
    """It knows whom it talks to, and cannot prove who it is itself."""
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    with caplog.at_level(logging.WARNING), context.socket(zmq.PUSH) as outlet:
        outlet.curve_publickey, outlet.curve_secretkey = zmq.curve_keypair()
        outlet.curve_serverkey = key.public
        outlet.connect(f"tcp://{ADDRESS}:{port}")
        outlet.send(encode_message(AbortMessage(1, "r")))
        with pytest.raises(queue.Empty):
            heard.get(timeout=1)
        refusal = "refused a connection from 127.0.0.1, which has another key"
        wait_until(lambda: any(refusal in text for text in caplog.messages))
        outlet.close(linger=0)
    context.term()


def test_a_client_without_a_key_is_not_heard(heard: queue.SimpleQueue[ControlMessage], port: int) -> None:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    with context.socket(zmq.PUSH) as outlet:
        outlet.connect(f"tcp://{ADDRESS}:{port}")
        outlet.send(encode_message(AbortMessage(1, "r")))
        with pytest.raises(queue.Empty):
            heard.get(timeout=1)
        outlet.close(linger=0)
    context.term()


def test_it_listens_at_its_address_alone(heard: queue.SimpleQueue[ControlMessage], port: int) -> None:
    socket.create_connection((ADDRESS, port), timeout=5).close()
    for other in OTHERS:
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection((other, port), timeout=5)


def test_no_address_of_another_host_is_connected_to_without_a_key(tmp_path: Path) -> None:
    endpoint = Endpoint(tmp_path, lambda message: None, RelaySettings("shm", 1 << 20))
    endpoint.start()
    with pytest.raises(OmniError, match="no key"):
        endpoint.connect(2, "tcp://127.0.0.21:7100")
    endpoint.stop()


def test_an_address_of_another_machine_is_refused(key: CurveKey) -> None:
    network = Network(NetworkPlace("b", "192.0.2.1", 7100, key, 5))
    with pytest.raises(OmniError, match="192.0.2.1 is no address"):
        network.listen(lambda message: None)
    network.close()


def test_a_message_that_is_too_long_is_dropped_and_others_go_on(
    connect: Connect, heard: queue.SimpleQueue[ControlMessage], key: CurveKey, port: int
) -> None:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    with context.socket(zmq.PUSH) as outlet:
        outlet.curve_publickey, outlet.curve_secretkey, outlet.curve_serverkey = key.public, key.secret, key.public
        outlet.connect(f"tcp://{ADDRESS}:{port}")
        outlet.send(bytes(MAX_FRAME + 1))
        connect(key).send(AbortMessage(1, "after"))
        assert heard.get(timeout=20) == AbortMessage(1, "after")
        assert heard.empty()
        outlet.close(linger=0)
    context.term()


def test_a_closed_outlet_says_so(connect: Connect, heard: queue.SimpleQueue[ControlMessage], key: CurveKey) -> None:
    outlet = connect(key)
    outlet.close()
    with pytest.raises(Unavailable, match="cannot be reached"):
        outlet.send(AbortMessage(1, "r"))
    assert not outlet.try_send(AbortMessage(1, "r"))


def test_a_name_that_means_this_machine_to_itself_alone_is_no_address(monkeypatch: pytest.MonkeyPatch) -> None:
    found = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.1.1", 0))]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *args, **options: found)
    with pytest.raises(OSError, match="think leads to 127.0.1.1 here"):
        own_address("think")
    assert own_address("localhost") == own_address("127.0.1.1") == "127.0.1.1"


def test_keys_are_made_and_read_by_their_owner_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "key"
    assert main(["key", str(path)]) == 0
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert load_key(path).secret.decode() not in repr(load_key(path))
    assert main(["key", str(path)]) == 2  # it is there already
    path.chmod(0o644)
    with pytest.raises(OmniError, match="everybody may read"):
        load_key(path)
    path.chmod(0o600)
    path.write_text("too short")
    with pytest.raises(OmniError, match="holds no key of 40 characters"):
        load_key(path)
    with pytest.raises(OmniError, match="cannot be read: No such file"):
        load_key(tmp_path / "none")
    capsys.readouterr()
