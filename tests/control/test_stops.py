"""Which processes count as stopped: real ones, that real signals and a real debugger stop."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from omni_python.control.deaths import DeathWatch
from omni_python.control.stops import LOOKS, PERIOD, STOPPED_S, StopWatch
from tests.faults.tracing import Traced

ENOUGH = 1 + LOOKS + int(STOPPED_S / PERIOD)
"""Looks after which a stopped process is told of."""


@pytest.fixture
def child() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        yield process
        process.kill()


def wait_state(pid: int, state: str) -> None:
    end = time.monotonic() + 10
    while True:
        with open(f"/proc/{pid}/stat") as file:
            if file.read().rpartition(")")[2].split()[0] in state:
                return
        assert time.monotonic() < end
        time.sleep(0.01)


def stop(process: subprocess.Popen[bytes]) -> None:
    process.send_signal(signal.SIGSTOP)
    wait_state(process.pid, "T")


def go_on(process: subprocess.Popen[bytes]) -> None:
    process.send_signal(signal.SIGCONT)
    wait_state(process.pid, "RS")


def test_what_stays_stopped_is_told_after_some_time_and_some_looks(child: subprocess.Popen[bytes]) -> None:
    watch = StopWatch()
    assert [watch.look([child.pid], number * PERIOD) for number in range(ENOUGH)] == [[]] * ENOUGH
    stop(child)
    times = [10 + number * PERIOD for number in range(ENOUGH)]
    found = [now for now in times if watch.look([child.pid], now) == [child.pid]]
    assert found == [now for now in times if now - 10 >= STOPPED_S]
    seldom = StopWatch()
    assert [seldom.look([child.pid], now) for now in (0.0, 1.0, 2.0)] == [[], [], [child.pid]]


def test_looks_too_soon_after_each_other_do_not_count(child: subprocess.Popen[bytes]) -> None:
    watch = StopWatch()
    stop(child)
    assert [watch.look([child.pid], 1 + number * PERIOD / 100) for number in range(50)] == [[]] * 50


def test_what_runs_between_the_looks_is_not_stopped(child: subprocess.Popen[bytes]) -> None:
    """As under a tool that slows a process down by stopping it again and again."""
    watch = StopWatch()
    for number in range(2 * ENOUGH):
        stop(child)
        assert watch.look([child.pid], number * PERIOD) == []
        go_on(child)


def test_a_watcher_that_was_stopped_along_with_it_gives_it_time_to_go_on(child: subprocess.Popen[bytes]) -> None:
    watch = StopWatch()
    stop(child)
    assert watch.look([child.pid], 0.0) == []
    assert watch.look([child.pid], 600.0) == [], "the first look of a watcher that has just been continued"
    go_on(child)
    assert watch.look([child.pid], 600.0 + PERIOD) == []


def test_what_a_debugger_stops_is_left_alone(child: subprocess.Popen[bytes]) -> None:
    watch = StopWatch()
    with Traced(child.pid):
        wait_state(child.pid, "t")
        assert [watch.look([child.pid], number * PERIOD) for number in range(ENOUGH)] == [[]] * ENOUGH
    wait_state(child.pid, "S")


def test_processes_that_are_gone_are_not_stopped(child: subprocess.Popen[bytes]) -> None:
    child.kill()
    child.wait()
    watch = StopWatch()
    assert [watch.look([child.pid, os.getpid()], number * PERIOD) for number in range(ENOUGH)] == [[]] * ENOUGH


def test_a_death_watch_tells_of_stopped_processes_by_their_keys(child: subprocess.Popen[bytes]) -> None:
    watch = DeathWatch()
    watch.watch(7, child.pid)
    stop(child)
    assert [watch.stopped(number * STOPPED_S / 2) for number in range(LOOKS)] == [[], [], [7]]
    watch.kill(7)
    end = time.monotonic() + 10
    while 7 not in watch.wait(0.1):
        assert time.monotonic() < end
    assert watch.stopped(10 * STOPPED_S) == []
    watch.kill(7)
    watch.close()
