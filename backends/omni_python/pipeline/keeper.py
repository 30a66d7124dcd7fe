"""Looks after a pipeline's processes on a host without its coordinator, which cannot see them die or start them."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from omni_python.control.deaths import DeathWatch
from omni_python.control.directory import leave_directory, remove_leftovers
from omni_python.control.inbox import Inbox
from omni_python.control.liveness import PERIOD, LifeSign, remove_life_sign, write_life_sign
from omni_python.control.network import Network
from omni_python.control.safely import safely
from omni_python.control.stops import PERIOD as LOOK_PERIOD
from omni_python.pipeline.endpoint import socket_name
from omni_python.pipeline.members import HELD_UP, STOPPED
from omni_python.pipeline.membership import coordinator_address
from omni_python.pipeline.place import Place
from omni_python.pipeline.start_times import StartTimes
from omni_python.proto.errors import OmniError
from omni_python.proto.messages import (
    BrokenMessage,
    ControlMessage,
    DrainMessage,
    GoneMessage,
    LeaveMessage,
    RegisterMessage,
    new_epoch,
)

log = logging.getLogger(__name__)


class Keeper:
    """Hears the processes of its host at the address where a coordinator would, brings back those that die, ends those
    that are stopped or long silent, and tells the coordinator, which otherwise would have to wait for their silence.

    `recover(process, replica, start_s)` is called for those that are to be started again, with the seconds that each
    took to start; it returns at once.
    """

    def __init__(
        self, pipeline: str, directory: Path, place: Place, recover: Callable[[str, int, float], None]
    ) -> None:
        self.epoch = new_epoch()
        self._pipeline = pipeline
        self._directory = directory
        self._silence = place.network.silence
        self._recover = recover
        self._network = Network(place.network)
        self._coordinator = self._network.outlet(place.coordinator)
        self._inbox = Inbox(coordinator_address(directory, pipeline), self._on_message)
        self._deaths = DeathWatch()
        self._processes: dict[int, RegisterMessage] = {}  # by epoch
        self._starts = StartTimes()
        self._heard: dict[int, float] = {}  # epoch -> when it last registered
        self._reasons: dict[int, str] = {}  # epoch -> why it ends
        self._leaving: set[int] = set()
        self._dead: set[int] = set()  # whose last heartbeats may come yet, and count no more
        self._draining = False
        self._watcher = threading.Thread(target=self._watch, name="omni-keeper", daemon=True)

    def start(self) -> None:
        remove_leftovers(self._directory)
        self._inbox.start()
        self._watcher.start()

    def stop(self) -> None:
        self._deaths.close()
        self._watcher.join()
        self._inbox.stop()
        self._coordinator.close(linger=0.2)
        self._network.close()
        remove_life_sign(self._directory, self._pipeline)
        leave_directory(self._directory)

    def give_up(self, process: str, replica: int, why: str) -> None:
        """A process will not come back."""
        self._tell(GoneMessage(self.epoch, process, replica, 0, why, for_good=True))

    def serves(self, process: str) -> bool:
        """Whether a replica of the process is there."""
        return any(known.process == process for known in list(self._processes.values()))

    # -- receiving thread

    def _on_message(self, message: ControlMessage) -> None:
        match message:
            case RegisterMessage():
                if message.epoch in self._dead:
                    return
                self._heard[message.epoch] = time.monotonic()
                if message.epoch not in self._processes:
                    self._welcome(message)
            case LeaveMessage():
                self._leaving.add(message.epoch)
            case BrokenMessage():
                self._reasons[message.epoch] = message.reason
                self._deaths.kill(message.epoch)
            case DrainMessage():
                self._draining = True
                self._deaths.wake()
            case _:
                log.warning("a keeper got a %s; ask the host of the orchestrator", type(message).__name__)

    def _welcome(self, message: RegisterMessage) -> None:
        self._processes[message.epoch] = message  # first: it may be found dead at once
        try:
            self._deaths.watch(message.epoch, message.pid)
        except BaseException:  # as where descriptors have run out: its next registration is the first once more
            self._processes.pop(message.epoch, None)
            self._heard.pop(message.epoch, None)
            raise
        self._starts.started(message.process, message.replica, message.pid)

    # -- watching thread

    def _watch(self) -> None:
        checked = time.monotonic()
        next_sign = 0.0
        while not self._deaths.closed:
            for epoch in self._deaths.wait(LOOK_PERIOD):
                safely("what the death of a process asks for", self._lose, epoch)
            now = time.monotonic()
            if now - checked > HELD_UP:  # this process was: nobody could be heard meanwhile
                self._heard = dict.fromkeys(list(self._heard), now)
            checked = now
            safely("the look for stuck processes", self._end_stuck, now)
            if now >= next_sign or self._draining:
                next_sign = now + PERIOD
                self._show_life()

    def _end_stuck(self, now: float) -> None:
        for epoch in self._deaths.stopped(now):
            self._reasons.setdefault(epoch, STOPPED)
            self._deaths.kill(epoch)
        for epoch, heard in self._heard.copy().items():
            if now - heard > self._silence and epoch not in self._leaving:
                self._reasons[epoch] = f"was silent for {now - heard:.0f} s and killed"
                self._heard.pop(epoch)
                self._deaths.kill(epoch)

    def _lose(self, epoch: int) -> None:
        self._dead.add(epoch)
        process = self._processes.pop(epoch, None)
        self._heard.pop(epoch, None)
        with suppress(OSError):
            os.unlink(self._directory / socket_name(epoch))
        if process is None or epoch in self._leaving:
            self._leaving.discard(epoch)
            return
        what = self._reasons.pop(epoch, "died")
        log.error("process %s (%s) %s", process.process, ", ".join(process.stages), what)
        self._tell(GoneMessage(self.epoch, process.process, process.replica, epoch, what))
        key = process.process, process.replica
        if all((other.process, other.replica) != key for other in list(self._processes.values())):  # no successor
            self._recover(*key, self._starts.seconds(*key))

    def _tell(self, message: GoneMessage) -> None:
        try:
            self._coordinator.send(message)
        except OmniError as error:
            log.warning("the coordinator does not know that process %s is gone: %s", message.process, error)

    def _show_life(self) -> None:
        try:
            write_life_sign(self._directory, self._pipeline, LifeSign(os.getpid(), 0, self._draining))
        except OSError as error:
            log.warning("no sign of life could be left: %s", error)
