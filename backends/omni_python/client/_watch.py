"""Whether the orchestrator that has a request still lives, and until when a request is waited for.

Triton (24.10 seen) never ends the requests of a model whose process died. So a client that has heard nothing for a
while asks the orchestrator for its age: a younger one has taken the place of the one that had the request.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

PERIOD = 2.0
"""Seconds without a response before the first look, and between looks, of which each is twice as late as the last."""

LONGEST_PERIOD = 16.0

UNHEALTHY = 10.0
"""Seconds for which Triton may call the orchestrator's process unhealthy: it is when it hangs for a moment, too."""

PATIENCE = 30.0
"""Seconds for which an orchestrator may answer no look. It answers without waiting for anything."""

MARGIN = 2.0
"""Seconds past its deadline in which the server may end a request, before the client does."""

NOT_HEALTHY = "is not healthy"
"""What Triton says of a model whose process died or hangs."""

IDLE = 10.0
"""Seconds without calls after which the watching thread ends."""


@dataclass(frozen=True)
class Look:
    """What an orchestrator that was asked at `time` said: its age in seconds, or why Triton refused, or nothing."""

    time: float
    uptime: float | None = None
    refusal: str = ""


class Call(Protocol):
    """What can be watched."""

    def cancel(self) -> object: ...


@dataclass(eq=False)
class Watched:
    """A call to `model`, which `judge` ends; `reason` then says why."""

    model: str
    call: Call
    reason: str = ""
    heard: float = field(default_factory=time.monotonic)
    """When the request was sent, or the last response came."""
    due: float = 0.0
    _period: float = PERIOD
    _lost: float | None = None  # when the first of the looks was made to which the orchestrator said nothing

    def __post_init__(self) -> None:
        self.due = self.heard + PERIOD

    def hear(self) -> None:
        """A response came."""
        self.heard = time.monotonic()
        self._period = PERIOD
        self.due = self.heard + PERIOD

    def judge(self, look: Look) -> None:
        """Cancel the call where its orchestrator cannot answer any more."""
        self._period = min(2 * self._period, LONGEST_PERIOD) if look.uptime is not None else PERIOD
        self.due = time.monotonic() + self._period
        self.reason = self._why_over(look)
        if self.reason:
            self.call.cancel()

    def _why_over(self, look: Look) -> str:
        who = f"the orchestrator of pipeline {self.model}"
        if look.uptime is not None:
            self._lost = None
            return f"{who} died with this request" if look.time - look.uptime > self.heard else ""
        if look.refusal and NOT_HEALTHY not in look.refusal:  # it is being loaded, or unloaded
            self._lost = None
            return ""
        self._lost = look.time if self._lost is None else self._lost
        lost = time.monotonic() - self._lost
        over = lost > (UNHEALTHY if look.refusal else PATIENCE)
        return f"{who} died or hangs: it has been silent for {lost:.0f} s" if over else ""


class Watcher:
    """Watches calls on one thread, which runs while there are any; `look(model)` blocks."""

    def __init__(self, look: Callable[[str], Look]) -> None:
        self._look = look
        self._calls: set[Watched] = set()
        self._changed = threading.Condition()
        self._running = False

    def watch(self, model: str, call: Call) -> Watched:
        """Watch a call until `forget`."""
        watched = Watched(model, call)
        with self._changed:
            self._calls.add(watched)
            if not self._running:
                self._running = True
                threading.Thread(target=self._run, name="omni-client-watch", daemon=True).start()
        return watched

    def forget(self, watched: Watched) -> None:
        """The call is over."""
        with self._changed:
            self._calls.discard(watched)

    def _run(self) -> None:
        while calls := self._due():
            looks = {model: self._look(model) for model in {watched.model for watched in calls}}
            for watched in calls:
                with self._changed:
                    if watched in self._calls:
                        watched.judge(looks[watched.model])

    def _due(self) -> list[Watched]:
        """Those that have been silent for long enough, as soon as there are any; none at the end."""
        with self._changed:
            idle_until = time.monotonic() + IDLE
            while self._calls or time.monotonic() < idle_until:
                now = time.monotonic()
                if due := [watched for watched in self._calls if watched.due <= now]:
                    return due
                if self._calls:
                    idle_until = now + IDLE
                self._changed.wait(min((watched.due for watched in self._calls), default=now + PERIOD) - now)
            self._running = False
            return []
