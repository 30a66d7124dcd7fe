"""Whether a running server has to be killed, since it will do nothing more."""

from __future__ import annotations

import threading
import time
from collections.abc import Collection
from pathlib import Path

from omni_python.control.stops import StopWatch
from omni_python.serve.orchestrators import Orchestrators
from omni_python.serve.stuck_crash import StuckCrash
from omni_python.serve.triton_server import TritonServer

PERIOD = 1.0
"""Seconds between two questions."""

SETTLE_S = 30.0
"""Seconds in which a server is ready once all processes of all its models are."""


def all_pipelines(repository: Path) -> set[str] | None:
    """The pipelines of a model repository; None where it has models of other backends, too."""
    if any('backend: "omni_python"' not in path.read_text() for path in repository.glob("*/config.pbtxt")):
        return None
    return {path.parent.parent.name for path in repository.glob("*/1/pipeline.yaml")}


class ServerHealth:
    """Looks whether a signal has stopped a server, or a crash does not end it, and hears its pipelines. From `begin`
    on, when the server is ready, it is also asked again and again whether it is alive, on a thread of its own: one that
    is stuck keeps whoever asks waiting, and after `silence` seconds without an answer counts as stuck. So does one that
    does not become ready although all processes of its `pipelines` are there; None where it has other models, too.

    That is how a stub looks that Triton has given up, where the kernel does not tell so (see `GivenUpStubs`).
    """

    def __init__(
        self, server: TritonServer, orchestrators: Orchestrators, silence: float, pipelines: Collection[str] | None
    ) -> None:
        self._server = server
        self._orchestrators = orchestrators
        self._silence = silence
        self._pipelines = pipelines
        self._begun = False
        self._complete: float | None = None  # since when all processes are there
        self._stops = StopWatch()
        self._crash = StuckCrash(server.process.pid)
        self._unanswered: float | None = None  # when the first question was put that has no answer
        self._closed = threading.Event()

    def begin(self) -> None:
        self._begun = True
        threading.Thread(target=self._ask, name="omni-health", daemon=True).start()

    def close(self) -> None:
        self._closed.set()

    def complaint(self, now: float) -> str:
        """What is wrong, as the end of a sentence about the server; "" while nothing is known to be. `now` is of the
        monotonic clock."""
        if self._stops.look([self._server.process.pid], now):
            return "was stopped by a signal"
        if crash := self._crash.look(now):
            return f"has crashed ({crash}) and does not end"
        # What passed while nobody asked, since this process was stopped for example, does not count.
        if self._unanswered is not None and now - self._unanswered > self._silence:
            return f"has been silent for {now - self._unanswered:.0f} s"
        if not self._begun and self._waits_in_vain(now):
            return f"has not become ready in the {SETTLE_S:.0f} s since all processes are there"
        return "; ".join(self._orchestrators.restart_wishes())

    def _waits_in_vain(self, now: float) -> bool:
        if not self._pipelines or not self._orchestrators.are_complete(self._pipelines):
            self._complete = None
            return False
        self._complete = now if self._complete is None else self._complete
        return now - self._complete > SETTLE_S

    def _ask(self) -> None:
        while not self._closed.is_set():
            asked = time.monotonic()
            try:
                answered = self._server.is_live()
            except OSError:  # not being able to ask is no silence
                answered = True
            if answered:
                self._unanswered = None
            elif self._unanswered is None:
                self._unanswered = asked
            self._closed.wait(PERIOD)
