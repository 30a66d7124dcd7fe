"""How stage processes come to a coordinator and leave it, while other things go on."""

from __future__ import annotations

import math
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import ANY, Mock

import pytest

from omni_python.models.noop.config import NoopLinePipelineConfig
from omni_python.pipeline.build import pipeline_spec
from omni_python.pipeline.endpoint import Endpoint
from omni_python.pipeline.members import HELD_UP, Members
from omni_python.proto.errors import OmniError
from omni_python.proto.messages import Peer, RegisterMessage
from tests.pipeline.harness import Pipeline


@contextmanager
def threads_change_often() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        yield
    finally:
        sys.setswitchinterval(before)


class Garbage:
    """Lets other threads run when it is collected, which is wherever memory is asked for."""

    def __init__(self) -> None:
        self.me = self

    def __del__(self) -> None:
        time.sleep(0)


def test_processes_may_register_while_heartbeats_are_looked_at() -> None:
    endpoint = cast(Endpoint, SimpleNamespace(epoch=1))
    ignore: Any = lambda *_: None  # noqa: E731
    members = Members(pipeline_spec(NoopLinePipelineConfig()), endpoint, 15.0, ignore, ignore, ignore)
    heard = members._heard = dict.fromkeys(range(10_000), math.inf)
    is_over = threading.Event()

    def register() -> None:
        epochs = range(len(heard), len(heard) + 100)
        while not is_over.is_set():
            for epoch in epochs:
                members._heard[epoch] = math.inf
            for epoch in epochs:
                members._heard.pop(epoch, None)

    other = threading.Thread(target=register)
    with threads_change_often():
        other.start()
        try:
            for _ in range(10):
                for _ in range(300):
                    Garbage()
                members._checked -= 2 * HELD_UP
                members.check_heartbeats()
        finally:
            is_over.set()
            other.join()
    members.close()
    members.wait(0)


def test_no_process_is_dismissed_that_can_still_be_chosen(line: Pipeline, monkeypatch: pytest.MonkeyPatch) -> None:
    line.submit()[1].wait()
    members = line.coordinator._members
    registry = members.registry
    could_be_chosen: list[bool] = []

    def retire(epoch: int, retire: Any = registry.retire) -> None:
        members.dismiss()  # as another thread may at any moment, when a request ends
        could_be_chosen.append(registry.can_serve({"b"}))
        retire(epoch)
        could_be_chosen.append(registry.can_serve({"b"}))

    monkeypatch.setattr(registry, "retire", retire)
    line.processes["b"].drain(30)
    assert could_be_chosen == [True, False]


@contextmanager
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(["sleep", "100"]) as process:
        try:
            yield process
        finally:
            process.kill()


@pytest.mark.parametrize("what", ["forget", "send", "remove_socket", "on_lost"])
def test_the_dead_are_seen_to_where_something_fails_for_one(what: str, caplog: pytest.LogCaptureFixture) -> None:
    """Two die at once, and both are told of, and started again."""
    lost: list[int] = []
    recovered: list[str] = []
    endpoint = Mock(epoch=1)
    endpoint.is_remote.return_value = False

    def on_lost(peer: Peer, why: str) -> None:
        lost.append(peer.epoch)
        if what == "on_lost":
            raise RuntimeError("a bug")

    with ExitStack() as stack:
        members = Members(
            pipeline_spec(NoopLinePipelineConfig()),
            endpoint,
            15.0,
            on_lost,
            Mock(),
            lambda process, replica, start_s: recovered.append(process),
        )
        processes = [stack.enter_context(sleeper()) for _ in "abc"]
        for epoch, (name, process) in enumerate(zip("abc", processes, strict=True), 10):
            members.register(RegisterMessage(epoch, name, [name], process.pid, f"{epoch}", (0, 0)))
        if what != "on_lost":
            getattr(endpoint, what).side_effect = RuntimeError("a bug")
        for process in processes[:2]:
            process.kill()
            os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        members.wait(10)
        assert sorted(lost) == [10, 11] and sorted(recovered) == ["a", "b"]
        assert [peer.epoch for peer in members.registry.peers()] == [12]
        assert "a bug" in caplog.text
        members.close()
        members.wait(0)


def test_a_process_that_cannot_be_reached_at_first_registers_again() -> None:
    endpoint, recover = Mock(epoch=1), Mock()
    endpoint.is_remote.return_value = False
    members = Members(pipeline_spec(NoopLinePipelineConfig()), endpoint, 15.0, Mock(), Mock(), recover)
    with sleeper() as process:
        message = RegisterMessage(10, "a", ["a"], process.pid, "10", (0, 0))
        endpoint.connect.side_effect = [OmniError("it cannot be reached"), None]
        with pytest.raises(OmniError, match="cannot be reached"):
            members.register(message)
        assert not members.registry.serves("a")
        members.register(message)
        assert members.registry.serves("a")
        process.kill()
        process.wait()
        members.wait(10)
        recover.assert_called_once_with("a", 0, ANY)
    members.close()
    members.wait(0)


def test_a_silent_process_that_is_not_watched_is_lost_and_started_again() -> None:
    """Nothing would tell of its death."""
    endpoint, lost, recover = Mock(epoch=1), Mock(), Mock()
    endpoint.is_remote.return_value = False
    members = Members(pipeline_spec(NoopLinePipelineConfig()), endpoint, 15.0, lost, Mock(), recover)
    with sleeper() as process:
        members.register(RegisterMessage(10, "a", ["a"], process.pid, "10", (0, 0)))
        members._deaths.forget(10)
        members._heard[10] -= 20
        for _ in range(2):
            members.check_heartbeats()
        lost.assert_called_once_with(ANY, "was silent for 20 s and killed")
        recover.assert_called_once_with("a", 0, ANY)
        assert not members.registry.serves("a")
    members.close()
    members.wait(0)
