"""What an orchestrator, and a host's keeper, make of registrations that come after a death, or of which they can make
nothing at first."""

from __future__ import annotations

import errno
import os
import queue
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import pytest

from omni_python.config.topology import resolve_topology
from omni_python.control.curve import load_key, make_key
from omni_python.control.network import NetworkPlace
from omni_python.control.outlet import LocalOutlet
from omni_python.models.noop.config import NoopLinePipelineConfig
from omni_python.pipeline.build import pipeline_spec
from omni_python.pipeline.coordinator import Coordinator
from omni_python.pipeline.keeper import Keeper
from omni_python.pipeline.membership import coordinator_address
from omni_python.pipeline.place import Place
from omni_python.proto.messages import RegisterMessage, new_epoch
from omni_python.relay.base import RelaySettings
from tests.waiting import wait_until

Recover = Callable[[str, int, float], None]


class Overseer(Protocol):
    def start(self) -> None: ...
    def stop(self) -> None: ...
    def serves(self, process: str) -> bool: ...


def coordinator(directory: Path, recover: Recover) -> Overseer:
    return Coordinator(pipeline_spec(NoopLinePipelineConfig()), directory, RelaySettings("shm", 1 << 20), recover)


def keeper(directory: Path, recover: Recover) -> Overseer:
    make_key(directory / "key")
    network = NetworkPlace("b", "127.0.0.1", 0, load_key(directory / "key"), 30)
    name = NoopLinePipelineConfig().resolved_name
    return Keeper(name, directory, Place(network, "tcp://127.0.0.1:9"), recover)  # where nobody listens


@pytest.mark.parametrize("make", [coordinator, keeper])
def test_a_last_heartbeat_does_not_bring_a_dead_process_back(
    directory: Path, make: Callable[[Path, Recover], Overseer]
) -> None:
    config = NoopLinePipelineConfig()
    group = resolve_topology(config).groups[1]
    recovered: queue.SimpleQueue[tuple[str, int]] = queue.SimpleQueue()
    overseer = make(directory, lambda process, replica, start_s: recovered.put((process, replica)))
    outlet = LocalOutlet(coordinator_address(directory, config.resolved_name))
    processes: list[subprocess.Popen[bytes]] = []

    def heartbeat(epoch: int, pid: int) -> None:
        outlet.send(RegisterMessage(epoch, group.name, list(group.stages), pid, str(directory / f"{epoch}"), (0, 0)))

    def until(is_so: Callable[[], bool]) -> None:
        end = time.monotonic() + 10
        while not is_so():
            assert time.monotonic() < end
            time.sleep(0.01)

    def start() -> int:
        epoch = new_epoch()
        processes.append(subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE))
        heartbeat(epoch, processes[-1].pid)
        until(lambda: overseer.serves(group.name))
        return epoch

    overseer.start()
    try:
        epoch = start()
        processes[0].kill()
        assert recovered.get(timeout=10) == (group.name, 0)
        processes[0].wait()
        heartbeat(epoch, processes[0].pid)
        time.sleep(0.3)
        assert recovered.empty() and not overseer.serves(group.name)
        start()
        heartbeat(epoch, processes[0].pid)
        time.sleep(0.3)
        assert recovered.empty() and overseer.serves(group.name), "nor does it replace its successor"
    finally:
        outlet.close()
        overseer.stop()
        for process in processes:
            process.kill()
            process.communicate()


@pytest.mark.parametrize("make", [coordinator, keeper])
def test_a_process_that_cannot_be_watched_at_first_is_watched_later(
    directory: Path, make: Callable[[Path, Recover], Overseer], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Descriptors have run out for a moment: its death is seen all the same."""
    config = NoopLinePipelineConfig()
    group = resolve_topology(config).groups[1]
    recovered: queue.SimpleQueue[str] = queue.SimpleQueue()
    overseer = make(directory, lambda process, replica, start_s: recovered.put(process))
    outlet = LocalOutlet(coordinator_address(directory, config.resolved_name))
    asked: queue.SimpleQueue[int] = queue.SimpleQueue()
    fails = True

    def pidfd_open(pid: int, open_it: Callable[[int], int] = os.pidfd_open) -> int:
        asked.put(pid)
        if fails:
            raise OSError(errno.EMFILE, "too many open files")
        return open_it(pid)

    monkeypatch.setattr(os, "pidfd_open", pidfd_open)
    overseer.start()
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        try:
            epoch = new_epoch()
            address = str(directory / f"{epoch}")
            heartbeat = RegisterMessage(epoch, group.name, list(group.stages), process.pid, address, (0, 0))
            outlet.send(heartbeat)
            assert asked.get(timeout=10) == process.pid
            wait_until(lambda: not overseer.serves(group.name))
            fails = False
            outlet.send(heartbeat)
            assert asked.get(timeout=10) == process.pid
            wait_until(lambda: overseer.serves(group.name))
            process.kill()
            assert recovered.get(timeout=10) == group.name
        finally:
            process.kill()
            outlet.close()
            overseer.stop()
