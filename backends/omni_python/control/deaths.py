"""Notices at once when a process of this host dies, and soon when one is stopped.

Deaths are told by pidfds: no polling of pids, no confusion by reused ones.
"""

from __future__ import annotations

import os
import select
import signal
import threading
from contextlib import suppress

from omni_python.control.stops import StopWatch


class DeathWatch:
    """Watches processes by a key (their epoch). One thread waits, and asks for the stopped ones; any thread may watch,
    forget or close."""

    def __init__(self) -> None:
        self._poll = select.poll()
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._poll.register(self._wake, select.POLLIN)
        self._keys: dict[int, int] = {}  # pidfd -> key
        self._pids: dict[int, int] = {}  # pidfd -> pid
        self._stops = StopWatch()
        self._gone: list[int] = []
        self._lock = threading.Lock()
        self.closed = False

    def watch(self, key: int, pid: int) -> None:
        """Watch `pid` under `key`, unless that is done already; one that is gone is reported by the next `wait`. Raises
        OSError where no descriptor can be had for it: nothing is watched then."""
        with self._lock:
            if key in self._gone or key in self._keys.values():
                return
        try:
            pidfd = os.pidfd_open(pid)
        except ProcessLookupError:
            with self._lock:
                self._gone.append(key)
        else:
            with self._lock:
                self._keys[pidfd] = key
                self._pids[pidfd] = pid
                self._poll.register(pidfd, select.POLLIN)
        self.wake()

    def forget(self, key: int) -> None:
        with self._lock:
            for pidfd in [pidfd for pidfd, watched in self._keys.items() if watched == key]:
                self._drop(pidfd)

    def kill(self, key: int) -> bool:
        """Kill a watched process that no longer answers; its death is then reported like any other. False where none is
        watched under this key."""
        with self._lock:
            found = key in self._gone
            for pidfd, watched in self._keys.items():
                if watched == key:
                    found = True
                    with suppress(ProcessLookupError):
                        signal.pidfd_send_signal(pidfd, signal.SIGKILL)
        return found

    def stopped(self, now: float) -> list[int]:
        """The keys of those that are stopped by a signal (see `StopWatch`); `now` is of the monotonic clock."""
        with self._lock:
            keys = {self._pids[pidfd]: key for pidfd, key in self._keys.items()}
        return [keys[pid] for pid in self._stops.look(keys, now)]

    def wait(self, timeout: float) -> list[int]:
        """The keys of those that died; empty after `timeout` seconds, at `close`, and sometimes early."""
        ready = self._poll.poll(timeout * 1000)
        with self._lock:
            dead, self._gone = self._gone, []
            for fd, _ in ready:
                if fd in self._keys:
                    dead.append(self._keys[fd])
                    self._drop(fd)
            if self.closed:
                self._close_eventfd()
            else:
                with suppress(BlockingIOError):
                    os.eventfd_read(self._wake)
        return dead

    def wake(self) -> None:
        """Let `wait` return early."""
        with self._lock:
            if self._wake >= 0:
                os.eventfd_write(self._wake, 1)

    def close(self) -> None:
        """Let `wait` return for the last time: the thread that waits closes what it waited on."""
        with self._lock:
            self.closed = True
            for pidfd in list(self._keys):
                self._drop(pidfd)
        self.wake()

    def _close_eventfd(self) -> None:
        if self._wake >= 0:
            self._poll.unregister(self._wake)
            os.close(self._wake)
            self._wake = -1

    def _drop(self, pidfd: int) -> None:
        self._poll.unregister(pidfd)
        del self._keys[pidfd], self._pids[pidfd]
        os.close(pidfd)
