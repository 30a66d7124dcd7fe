"""A crash that does not end its process: what threads look like that handle a fatal signal, and what others do."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from omni_python.serve import server_threads, stuck_crash
from omni_python.serve.stuck_crash import StuckCrash

PROCESS = """
import signal, sys, threading
def block(numbers):
    signal.pthread_sigmask(signal.SIG_BLOCK, numbers)
    ready.release()
    threading.Event().wait()
ready = threading.Semaphore(0)
for numbers in eval(sys.argv[1], {"signal": signal}):
    threading.Thread(target=block, args=(numbers,), daemon=True).start()
    ready.acquire()
print("ready", flush=True)
sys.stdin.read()
"""


@contextmanager
def process(threads: str) -> Iterator[int]:
    """The id of a process with threads that block these signals."""
    command = [sys.executable, "-c", PROCESS, threads]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as started:
        assert started.stdout is not None and started.stdout.readline() == b"ready\n"
        yield started.pid
        started.communicate()


@pytest.mark.parametrize(
    ("threads", "found"),
    [
        ("[{signal.SIGABRT}]", "SIGABRT"),
        ("[{signal.SIGUSR1}, {signal.SIGSEGV, signal.SIGTERM}]", "SIGSEGV"),
        ("[{signal.SIGUSR1, signal.SIGTERM, signal.SIGPIPE}]", ""),
        ("[signal.valid_signals()]", ""),
    ],
    ids=["abort", "one of two", "no fatal signal", "all signals"],
)
def test_a_thread_that_handles_a_fatal_signal_is_found_after_a_while(threads: str, found: str) -> None:
    with process(threads) as pid:
        crash = StuckCrash(pid)
        start = 1000.0
        assert crash.look(start) == "", "it may still end"
        assert crash.look(start + stuck_crash.PATIENCE / 2) == ""
        assert crash.look(start + stuck_crash.PATIENCE) == found
        assert crash.look(start + stuck_crash.PATIENCE) == "", "it does not look so often"
    assert crash.look(start + 100) == "", "it has ended"


def test_a_signal_is_handled_for_as_long_as_the_same_thread_does() -> None:
    crash = StuckCrash(0)
    now = 1000.0
    for thread in ("1", "2", "3", "4", "5"):
        now += server_threads.PERIOD
        crash._threads.told = lambda thread=thread: [(thread, "SIGABRT")]  # type: ignore[method-assign, misc]
        assert crash.look(now) == ""
    assert crash.look(now + stuck_crash.PATIENCE) == signal.SIGABRT.name
