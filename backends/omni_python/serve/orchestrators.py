"""A server's orchestrators as its supervisor sees them: whether they live, how to reload one, how to drain them."""

from __future__ import annotations

import os
import select
import signal
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from omni_python.control.directory import find_server_directory
from omni_python.control.liveness import PERIOD, LifeSign, Liveness, read_life_signs
from omni_python.control.outlet import LocalOutlet
from omni_python.control.restart_wishes import restart_wishes
from omni_python.control.stops import StopWatch
from omni_python.pipeline.membership import coordinator_address
from omni_python.proto.errors import OmniError
from omni_python.proto.messages import DrainMessage
from omni_python.serve.triton_server import ServerFailed, TritonServer

UNLOAD_TIMEOUT = 60.0
LINGER = 1.0
"""Seconds that a drain message may take to be delivered."""


@dataclass(frozen=True)
class Death:
    """The process id of an orchestrator that is dead, and what became of it."""

    pid: int
    what: str


@dataclass
class Orchestrators:
    """Those of `server`, whose pipelines keep their sockets below one of `bases`. One without a sign of life for
    `silence` seconds counts as stuck and is killed, and so is one that is stopped by a signal. Of the time between two
    looks `PERIOD` seconds count at most: when this process was held up, so may the others have been.

    Triton itself neither notices nor restarts a stub that died: its model stays "ready" and its requests hang.
    """

    server: TritonServer
    bases: Iterable[Path]
    silence: float
    _fds: dict[int, int] = field(default_factory=dict)  # pid -> pidfd
    _places: dict[Path, Path] = field(default_factory=dict)  # base -> the server's directory below it
    _known: dict[str, tuple[Path, Liveness]] = field(default_factory=dict)  # what was found last
    _ages: dict[str, float] = field(default_factory=dict)  # pipeline -> seconds for which that has been known
    _looked: float = 0.0  # when it was found
    _stops: StopWatch = field(default_factory=StopWatch)

    def pidfds(self) -> list[int]:
        """Descriptors that become readable when an orchestrator dies that has been seen alive."""
        return list(self._fds.values())

    def close(self) -> None:
        for descriptor in self._fds.values():
            os.close(descriptor)
        self._fds.clear()

    def signs(self) -> dict[str, LifeSign]:
        """The newest sign of life by pipeline."""
        return {name: found.sign for name, (_, found) in self._found().items()}

    def take_dead(self) -> dict[str, Death]:
        """The pipelines whose orchestrators are dead; those that are stuck are killed first."""
        found = {pipeline: life for pipeline, (_, life) in self._found().items()}
        stopped = self._stops.look([life.sign.pid for life in found.values()], time.monotonic())
        for pid in self._fds.keys() - {life.sign.pid for life in found.values()}:  # ended in order: readable for ever
            os.close(self._fds.pop(pid))
        dead = {}
        for pipeline, life in found.items():
            pid = life.sign.pid
            if self._has_ended(pid):
                dead[pipeline] = Death(pid, "died")
            elif pid in stopped:
                dead[pipeline] = Death(pid, "was stopped by a signal and killed")
            elif (age := self._ages[pipeline]) > self.silence:
                dead[pipeline] = Death(pid, f"was silent for {age:.0f} s and killed")
        for death in dead.values():
            if (descriptor := self._fds.pop(death.pid, None)) is not None:
                with suppress(ProcessLookupError):
                    signal.pidfd_send_signal(descriptor, signal.SIGKILL)
                os.close(descriptor)
        return dead

    def restart_wishes(self) -> list[str]:
        """Why the server has to be started again, as its pipelines say."""
        return [f"{why}, says {name}" for where in self._directories() for name, why in restart_wishes(where).items()]

    def reload(self, pipeline: str) -> None:
        """Unload and load the orchestrator's model. Raises `ServerFailed` where Triton refuses."""
        self.server.unload(pipeline)
        end = time.monotonic() + UNLOAD_TIMEOUT
        while self.server.is_model_ready(pipeline):
            if time.monotonic() > end:
                raise ServerFailed(f"model {pipeline} was not unloaded within {UNLOAD_TIMEOUT:.0f} s")
            time.sleep(0.05)
        self.server.load(pipeline)

    def are_complete(self, pipelines: Iterable[str]) -> bool:
        """Whether each of the pipelines has an orchestrator, and all of its processes."""
        signs = self.signs()
        return all(name in signs and signs[name].complete for name in pipelines)

    def drain(self, end: bool = False) -> None:
        """Tell all that do not know it to admit nothing more, or all to `end` what they have; their signs tell what is
        still in flight."""
        for pipeline, (directory, found) in self._found().items():
            if self._has_ended(found.sign.pid) or (found.sign.draining and not end):
                continue
            outlet = LocalOutlet(coordinator_address(directory, pipeline))
            with suppress(OmniError):
                outlet.send(DrainMessage(0, end))
            outlet.close(linger=LINGER)

    def in_flight(self) -> int:
        """Requests of living orchestrators; one that has not heard of the drain counts as one request at least."""
        return sum(
            sign.requests if sign.draining else max(1, sign.requests)
            for sign in self.signs().values()
            if not self._has_ended(sign.pid)
        )

    def _has_ended(self, pid: int) -> bool:
        """Without a new descriptor where the process was seen before; False where there is none left to look with."""
        if pid not in self._fds:
            try:
                self._fds[pid] = os.pidfd_open(pid)
            except OSError as error:
                return isinstance(error, ProcessLookupError)
        poll = select.poll()
        poll.register(self._fds[pid], select.POLLIN)
        return bool(poll.poll(0))

    def _found(self) -> dict[str, tuple[Path, Liveness]]:
        """What is there, or was when this process last had a descriptor left to look with."""
        with suppress(OSError):
            found = {
                name: (directory, life)
                for directory in self._directories()
                for name, life in read_life_signs(directory).items()
            }
            now = time.monotonic()
            passed = min(now - self._looked, PERIOD)
            self._ages = {
                name: self._ages[name] + passed if self._known.get(name) == found[name] else 0.0 for name in found
            }
            self._known, self._looked = found, now
        return self._known

    def _directories(self) -> list[Path]:
        for base in self.bases:
            if base not in self._places and (found := find_server_directory(base, self.server.process.pid)):
                self._places[base] = found
        return list(self._places.values())
