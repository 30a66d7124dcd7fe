"""Whether a running server has to be killed, since it will do nothing more."""

from __future__ import annotations

import threading
import time

from omni_python.control.stops import StopWatch
from omni_python.serve.orchestrators import Orchestrators
from omni_python.serve.triton_server import TritonServer

PERIOD = 1.0
"""Seconds between two questions."""


class ServerHealth:
    """Looks whether a signal has stopped a server, and hears its pipelines; from `begin` on, when the server is ready,
    it is also asked again and again whether it is alive, on a thread of its own: one that is stuck keeps whoever asks
    waiting, and after `silence` seconds without an answer counts as stuck.
    """

    def __init__(self, server: TritonServer, orchestrators: Orchestrators, silence: float) -> None:
        self._server = server
        self._orchestrators = orchestrators
        self._silence = silence
        self._stops = StopWatch()
        self._unanswered: float | None = None  # when the first question was put that has no answer
        self._closed = threading.Event()

    def begin(self) -> None:
        threading.Thread(target=self._ask, name="omni-health", daemon=True).start()

    def close(self) -> None:
        self._closed.set()

    def complaint(self) -> str:
        """What is wrong, as the end of a sentence about the server; "" while nothing is known to be."""
        now = time.monotonic()
        if self._stops.look([self._server.process.pid], now):
            return "was stopped by a signal"
        # What passed while nobody asked, since this process was stopped for example, does not count.
        if self._unanswered is not None and now - self._unanswered > self._silence:
            return f"has been silent for {now - self._unanswered:.0f} s"
        return "; ".join(self._orchestrators.restart_wishes())

    def _ask(self) -> None:
        while not self._closed.is_set():
            asked = time.monotonic()
            if self._server.is_live():
                self._unanswered = None
            elif self._unanswered is None:
                self._unanswered = asked
            self._closed.wait(PERIOD)
