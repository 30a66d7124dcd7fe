"""Two processes in one place for a while: a model is reloaded in place, or its new process is faster than the news of
the old one's death."""

from __future__ import annotations

import os
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from unittest.mock import Mock

import pytest

from omni_python.control.outlet import LocalOutlet
from omni_python.models.noop.config import NoopLinePipelineConfig
from omni_python.pipeline.build import build_stages
from omni_python.pipeline.membership import Membership, coordinator_address
from omni_python.pipeline.registry import Registry
from omni_python.pipeline.stage_process import StageProcess
from omni_python.proto.messages import Peer, PeersMessage, RegisterMessage, new_epoch
from omni_python.relay.base import RelaySettings
from tests.pipeline.harness import POOL, Pipeline
from tests.pipeline.test_late_news import Overseer, Recover, coordinator, keeper
from tests.waiting import wait_until

LONG = 60.0
"""Seconds that no test waits for."""


def reload_in_place(line: Pipeline, directory: Path) -> StageProcess:
    """Start another process `b` beside the first, which is then `old b`."""
    config = NoopLinePipelineConfig()
    stages = build_stages(config, "b", directory)
    new = StageProcess(config.resolved_name, "b", stages, directory, RelaySettings("shm", POOL))
    line.processes["old b"], line.processes["b"] = line.processes["b"], new
    new.start()
    wait_until(lambda: is_current(line, new))
    return new


def is_current(line: Pipeline, process: StageProcess) -> bool:
    current = line.coordinator._registry.current("b", 0)
    return current is not None and current.epoch == process._endpoint.epoch


def test_a_model_that_is_reloaded_in_place_ends_what_it_has(line: Pipeline, directory: Path) -> None:
    registry = line.coordinator._registry
    _, held = line.submit(delay=1.0)
    old = line.processes["b"]
    wait_until(lambda: old.stages["b"].accepted == 1)
    new = reload_in_place(line, directory)
    version = registry.version
    line.submit()[1].wait()
    assert old.stages["b"].accepted == new.stages["b"].accepted == 1

    old._membership._register()  # its heartbeat
    drained = threading.Thread(target=old.drain, args=(LONG,))
    drained.start()
    held.wait()
    drained.join(LONG / 2)
    assert not drained.is_alive()
    assert is_current(line, new) and registry.version == version + 1, "the old one went, and nothing else happened"
    assert [peer.process for peer in registry.peers()] == ["a", "c", "b"]

    line.submit()[1].wait()
    assert new.stages["b"].accepted == 2
    line.wait_empty()


def test_an_old_process_that_is_idle_leaves_at_once(line: Pipeline, directory: Path) -> None:
    line.submit()[1].wait()
    new = reload_in_place(line, directory)
    old = line.processes["old b"]
    start = time.monotonic()
    old.drain(LONG)
    assert time.monotonic() - start < LONG / 2 and is_current(line, new)


def test_an_old_process_takes_its_place_again_where_the_new_one_does_not_stay(line: Pipeline, directory: Path) -> None:
    """As when Triton cannot load all of a model's new instances, and goes on with the old ones."""
    line.submit()[1].wait()
    new = reload_in_place(line, directory)
    old = line.processes["old b"]
    new.drain(LONG)
    wait_until(lambda: is_current(line, old))
    line.submit()[1].wait()
    assert old.stages["b"].accepted == 2
    line.wait_empty()


def test_nobody_waits_for_what_an_old_process_knows() -> None:
    """Which may be stuck, and is chosen for nothing new."""
    registry = Registry(1, {"a": ["a"], "b": ["b"]}, {"a": 1, "b": 1})

    def register(epoch: int, name: str, seen: int = 0) -> None:
        registry.register(RegisterMessage(epoch, name, [name], 0, "", (1, seen)))

    for epoch, name in (10, "a"), (20, "b"):
        register(epoch, name)
    for epoch, name in (10, "a"), (20, "b"):
        register(epoch, name, registry.version)
    assert registry.choose(["a", "b"]) == (10, 20)
    register(21, "b")
    assert registry.choose(["a", "b"]) is None, "10 may not know of 21 yet"
    register(21, "b", registry.version)
    register(10, "a", registry.version)
    assert registry.choose(["a", "b"]) == (10, 21)
    assert {load.process: load.requests for load in registry.loads()} == {"a": 2, "b": 2}


def test_another_coordinator_s_news_of_both_make_neither_dead() -> None:
    endpoint = Mock()
    membership = Membership("a", 0, ["a"], endpoint, "", None, lambda: None)
    peers = [Peer("b", ["b"], epoch, 0, "") for epoch in (20, 21)]
    for epoch in 1, 2:
        membership.update(PeersMessage(epoch, 1, os.getpid(), "", peers))
    endpoint.forget.assert_not_called()
    membership.update(PeersMessage(2, 2, os.getpid(), "", peers[1:]))
    endpoint.forget.assert_called_once_with(20)
    membership._deaths.close()
    membership._deaths.wait(0)


@pytest.mark.parametrize("make", [coordinator, keeper])
def test_a_process_that_dies_after_its_successor_has_come_is_not_brought_back(
    directory: Path, make: Callable[[Path, Recover], Overseer]
) -> None:
    """That would end the successor."""
    recovered: queue.SimpleQueue[tuple[str, int]] = queue.SimpleQueue()
    overseer = make(directory, lambda process, replica, start_s: recovered.put((process, replica)))
    outlet = LocalOutlet(coordinator_address(directory, NoopLinePipelineConfig().resolved_name))
    processes: list[subprocess.Popen[bytes]] = []

    def start(name: str) -> subprocess.Popen[bytes]:
        processes.append(subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE))
        epoch, pid = new_epoch(), processes[-1].pid
        outlet.send(RegisterMessage(epoch, name, [name], pid, str(directory / f"{epoch}"), (0, 0)))
        return processes[-1]

    overseer.start()
    try:
        old, new, other = start("b"), start("b"), start("c")
        wait_until(lambda: overseer.serves("c"))  # which came last
        old.kill()
        other.kill()
        assert recovered.get(timeout=10) == ("c", 0)
        assert overseer.serves("b")
        new.kill()
        assert recovered.get(timeout=10) == ("b", 0)
        assert recovered.empty()
    finally:
        outlet.close()
        overseer.stop()
        for process in processes:
            process.kill()
            process.communicate()
