"""Deaths of real processes."""

from __future__ import annotations

import subprocess
import sys
import threading
import time

from omni_python.control.deaths import DeathWatch
from tests.leftovers import none_kept_by_each_of


def child() -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)


def wait_for(watch: DeathWatch, seconds: float) -> list[int]:
    end = time.monotonic() + seconds
    dead: list[int] = []
    while not dead and time.monotonic() < end:
        dead = watch.wait(0.1)
    return dead


def test_deaths_are_seen_at_once_and_once() -> None:
    watch = DeathWatch()
    with child() as first, child() as second:
        watch.watch(1, first.pid)
        watch.watch(2, second.pid)
        assert wait_for(watch, 0.3) == []
        first.kill()
        start = time.monotonic()
        assert wait_for(watch, 5) == [1]
        assert time.monotonic() - start < 3
        assert wait_for(watch, 0.3) == []
        watch.forget(2)
        second.kill()
        assert wait_for(watch, 0.3) == []
    watch.close()


def test_a_process_that_is_gone_already_counts_as_dead() -> None:
    with child() as gone:
        gone.kill()
    watch = DeathWatch()
    watch.watch(7, gone.pid)
    assert wait_for(watch, 1) == [7]
    watch.close()


def test_waiting_ends_early_on_wake_and_close() -> None:
    watch = DeathWatch()
    for end in (watch.wake, watch.close):
        threading.Timer(0.05, end).start()
        start = time.monotonic()
        assert watch.wait(10) == []
        assert time.monotonic() - start < 5
    assert watch.closed


def test_closing_gives_every_descriptor_back() -> None:
    with child() as process:
        with none_kept_by_each_of(10):
            for _ in range(10):
                watch = DeathWatch()
                watch.watch(1, process.pid)
                watch.close()
                watch.wait(0)
        assert process.poll() is None
        process.kill()


def test_a_process_is_watched_once_however_often_that_is_asked() -> None:
    watch = DeathWatch()
    with child() as process:
        with none_kept_by_each_of(10):
            for _ in range(10):
                watch.watch(1, process.pid)
        watch.forget(1)
        assert not watch.kill(1), "nothing is watched any more"
        watch.watch(1, process.pid)
        assert watch.kill(1)
        process.wait()
        assert wait_for(watch, 5) == [1]
        for _ in range(2):
            watch.watch(1, process.pid)
        assert watch.kill(1), "its death is yet to be told"
        assert wait_for(watch, 5) == [1]
    watch.close()
    watch.wait(0)
