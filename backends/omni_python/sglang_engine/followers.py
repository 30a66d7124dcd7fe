"""Rank 0's side of a tensor-parallel group: it starts the other ranks' processes, watches them, and ends them.

Each is connected by a pair of sockets that nobody else can name: a process that dies closes its end, which the other
one sees at once, and nothing is left in the file system.
"""

from __future__ import annotations

import logging
import math
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from multiprocessing.connection import Connection, Pipe, wait
from pathlib import Path
from typing import Any

import torch.distributed

from omni_python.control.stops import PERIOD, StopWatch
from omni_python.proto.errors import OmniError
from omni_python.proto.payload import Payload
from omni_python.sglang_engine.config import EngineConfig
from omni_python.sglang_engine.rank_messages import (
    SIGN_PERIOD,
    Alive,
    Broken,
    Joined,
    Launch,
    Link,
    Step,
    Stop,
    encode,
)

EXIT_TIMEOUT = 0.4
"""Seconds that followers have to end by themselves. A stub that takes 2 s in all to finalize is killed by Triton."""

SILENCE = 10.0
"""Seconds without a sign of life after which a follower counts as lost. Steps and collectives do not hold it up, for
they run without the interpreter's lock."""

LONGEST_STEP = 120.0
"""Seconds after which a step counts as one that will never end: a rank is not in the collective in which the others
wait. It shows life, which is another thread's. A first step may compile kernels for half a minute."""

_STOPPED = "was stopped by a signal and killed"

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class RankGroup:
    """The processes of one stage, `{process}_tp{rank}`; `gpu_ids` has the GPU of every rank, or is empty on the CPU."""

    process: str
    size: int
    gpu_ids: tuple[int, ...] = ()

    def name(self, rank: int) -> str:
        return f"{self.process}_tp{rank}"

    def gpu_id(self, rank: int) -> int | None:
        return self.gpu_ids[rank] if self.gpu_ids else None


@dataclass(eq=False)
class _Follower:
    name: str
    rank: int
    link: Link
    process: subprocess.Popen[bytes]
    heard: float = math.inf
    """When it last showed life, by the clock of `Followers`; until it first does it builds its engine."""
    steps: int = 0
    """That it had ended then."""

    def end(self) -> str:
        """How it ended, which it has or is about to."""
        try:
            code = self.process.wait(timeout=EXIT_TIMEOUT)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            return "closed its connection"
        return f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with status {code}"


class Followers:
    """Ranks 1 and up. `on_lost(reason)` is called once, on a thread of its own, when one ends unasked or hangs."""

    def __init__(self, config: EngineConfig, group: RankGroup, on_lost: Callable[[str], None]) -> None:
        """Returns while they are starting."""
        self._on_lost = on_lost
        self._lock = threading.Lock()
        self._sending = threading.Lock()
        self._closing = False
        self.lost = threading.Event()
        self._followers: list[_Follower] = []
        self._stops = StopWatch()
        self._watched = 0.0  # seconds; those in which this process was itself held up do not count
        self._steps = 0
        self._step_began = math.inf  # by `_watched`
        self._store, self.port = _store(group.size)
        try:
            for rank in range(1, group.size):
                self._followers.append(_start(group, rank))
            for follower in self._followers:
                rank, gpu_id = follower.rank, group.gpu_id(follower.rank)
                follower.link.send(Launch.of(replace(config, tp_rank=rank, gpu_id=gpu_id, tp_port=self.port)))
        except BaseException:
            self.close()
            raise

    def join(self) -> None:
        """Wait until all are about to meet rank 0, and watch them from then on. Raises `OmniError` where one of them
        cannot start."""
        for follower in self._followers:
            self._await_joined(follower)
        threading.Thread(target=self._watch, name="omni-ranks", daemon=True).start()

    def send(self, message: Payload) -> None:
        """To every follower, on any thread. One that is gone is left to the watching thread."""
        frame = encode(message)
        with self._sending:
            for follower in self._followers:
                with suppress(OSError):
                    follower.link.connection.send_bytes(frame)

    @contextmanager
    def step(self, waiting: Collection[str] | None) -> Iterator[None]:
        """All ranks compute a batch meanwhile (see `Step`); on one thread."""
        self._steps += 1
        self._step_began = self._watched
        try:
            self.send(Step(None if waiting is None else sorted(waiting)))
            yield
        finally:
            self._step_began = math.inf

    def report(self, reason: str) -> None:
        """The group cannot go on. Only the first reason counts, and none while it is being closed."""
        with self._lock:
            if self.lost.is_set() or self._closing:
                return
            self.lost.set()
        self._on_lost(reason)

    def close(self) -> None:
        """End all of them; those that do not obey are killed."""
        with self._lock:
            self._closing = True
        self.send(Stop())
        end = time.monotonic() + EXIT_TIMEOUT
        for follower in self._followers:
            try:
                follower.process.wait(timeout=max(0.0, end - time.monotonic()))
            except subprocess.TimeoutExpired:
                follower.process.kill()
                follower.process.wait()
            follower.link.connection.close()

    def _await_joined(self, follower: _Follower) -> None:
        while not follower.link.connection.poll(PERIOD):
            for stopped in self._stopped(self._followers):
                stopped.process.kill()
                raise OmniError(f"{_who(stopped)} {_STOPPED} before it had started")
        try:
            message = follower.link.receive()
        except (EOFError, OSError):
            raise OmniError(f"{_who(follower)} {follower.end()} before it had started") from None
        if not isinstance(message, Joined):
            reason = message.reason if isinstance(message, Broken) else f"sent {type(message).__name__} first"
            raise OmniError(f"{_who(follower)}: {reason}")

    def _watch(self) -> None:
        left = {follower.link.connection: follower for follower in self._followers}
        looked = time.monotonic()
        while left and not self._closing:
            try:
                ready = wait(list(left), PERIOD)
            except OSError:  # closed meanwhile
                return
            for connection in ready:
                assert isinstance(connection, Connection)
                if last_words := self._last_words(left[connection]):
                    self.report(f"lost {_who(left.pop(connection))}, which {last_words}")
            before, looked = looked, time.monotonic()
            self._watched += min(looked - before, SIGN_PERIOD)
            for follower, why in self._hung(left.values()):
                del left[follower.link.connection]
                follower.process.kill()  # before: this process may end by the report
                self.report(f"lost {_who(follower)}, which {why}")
            if self._watched - self._step_began > LONGEST_STEP:
                self.report(self._endless_step())

    def _last_words(self, follower: _Follower) -> str:
        """What a message, or its end, says of how the follower ended; "" for a sign of life."""
        try:
            message = follower.link.receive()
        except (EOFError, OSError):
            return follower.end()
        if isinstance(message, Alive):
            follower.heard, follower.steps = self._watched, message.steps
            return ""
        return f"failed: {message.reason}" if isinstance(message, Broken) else follower.end()

    def _hung(self, followers: Collection[_Follower]) -> list[tuple[_Follower, str]]:
        """Those that will do nothing more, and why."""
        stopped = self._stopped(followers)
        hung = [(follower, _STOPPED) for follower in stopped]
        for follower in followers:
            silent = self._watched - follower.heard
            if silent > SILENCE and follower not in stopped:
                hung.append((follower, f"gave no sign of life for {silent:.0f} s and was killed"))
        return hung

    def _stopped(self, followers: Collection[_Follower]) -> list[_Follower]:
        stopped = self._stops.look([follower.process.pid for follower in followers], time.monotonic())
        return [follower for follower in followers if follower.process.pid in stopped]

    def _endless_step(self) -> str:
        behind = [_who(follower) for follower in self._followers if follower.steps < self._steps]
        return f"a step has not ended for {LONGEST_STEP:.0f} s on {', '.join(['rank 0', *behind])}"


def _who(follower: _Follower) -> str:
    return f"rank {follower.rank} (process {follower.name})"


def _store(size: int) -> tuple[Any, int]:
    """Where the ranks of this group alone find each other: a port of its own, on the loopback device."""
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    # The store owns the descriptor from here on.
    store = torch.distributed.TCPStore(  # type: ignore[attr-defined]
        "127.0.0.1",
        port,
        size,
        is_master=True,
        timeout=timedelta(seconds=300),
        wait_for_workers=False,
        master_listen_fd=listener.detach(),
    )
    return store, port


def _start(group: RankGroup, rank: int) -> _Follower:
    ours, theirs = Pipe()
    name = group.name(rank)
    command = [_python(), "-m", "omni_python.sglang_engine.follower"]
    command += [name, str(rank), str(theirs.fileno()), str(os.getpid())]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    process = subprocess.Popen(
        command, env=environment, stdin=subprocess.DEVNULL, pass_fds=[theirs.fileno()], close_fds=True
    )
    theirs.close()
    log.info("started %s, rank %d, as process %d", name, rank, process.pid)
    return _Follower(name, rank, Link(ours), process)


def _python() -> str:
    """This interpreter, also inside a server's stub, where Python is embedded in another program."""
    for candidate in (sys.executable, str(Path(sys.prefix) / "bin" / "python3"), shutil.which("python3")):
        if candidate and Path(candidate).name.startswith("python") and os.access(candidate, os.X_OK):
            return candidate
    raise OmniError("there is no python3 on PATH to start the other ranks of a tensor-parallel stage with")
