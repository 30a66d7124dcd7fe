"""Everything that one Triton model's process runs: its stages, and their connection to all others."""

from __future__ import annotations

import logging
import os
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from omni_python.control.directory import leave_directory
from omni_python.pipeline.deadlines import DeadlineWatch
from omni_python.pipeline.endpoint import Endpoint
from omni_python.pipeline.membership import COORDINATOR, Membership, coordinator_address
from omni_python.pipeline.observer import Observer
from omni_python.pipeline.outlet import ProcessOutlet
from omni_python.pipeline.place import Place
from omni_python.pipeline.profiling import ProcessProfiler, profile_name
from omni_python.pipeline.routes import Routes
from omni_python.pipeline.stage import Stage
from omni_python.pipeline.stage_spec import StageSpec
from omni_python.proto.errors import OmniError, Unsupported
from omni_python.proto.messages import (
    AbortMessage,
    BrokenMessage,
    ControlMessage,
    DataReadyMessage,
    GoodbyeMessage,
    PeersMessage,
    ProfileMessage,
    StopProfileMessage,
    SubmitMessage,
    TraceMessage,
)
from omni_python.proto.trace import CLIENT, StageRecord
from omni_python.relay.base import RelaySettings
from omni_python.scheduling.base import Scheduler

BROKEN_GRACE = 2.0
"""Seconds in which the coordinator ends a process that cannot go on; then it ends by itself."""

log = logging.getLogger(__name__)


class StageProcess:
    """Stages that share a process, one socket for all of them. `replica` tells the process from others that run the
    same stages."""

    def __init__(
        self,
        pipeline: str,
        process: str,
        stages: Iterable[tuple[StageSpec, Scheduler]],
        directory: Path,
        relay: RelaySettings,
        host: str | None = None,
        replica: int = 0,
        place: Place | None = None,
    ) -> None:
        self.process = process
        self.replica = replica
        self.stages: dict[str, Stage] = {}
        self._directory = directory
        self._is_broken = False
        network = None if place is None else place.network
        self._endpoint = Endpoint(
            directory,
            self._on_message,
            relay,
            host=host,
            place=network,
            on_broken=lambda epoch: self._membership.link_broken(epoch),
        )
        self._carrier = self._endpoint.carrier
        address = coordinator_address(directory, pipeline)
        declared = list(stages)
        names = [spec.name for spec, _ in declared]
        self._membership = Membership(process, replica, names, self._endpoint, address, place, self._drop_requests)
        self._observer = Observer(pipeline, process, self.stages, self._report_trace)
        self.edges = self._observer.edges
        self._routes = Routes(self._is_open, self._observer.over)
        self._outlet = ProcessOutlet(self.stages, self._endpoint, self._membership, self._observer, self._routes)
        self._deadlines = DeadlineWatch(lambda stage, request_id: self.stages[stage].expire(request_id))
        for spec, scheduler in declared:
            self.stages[spec.name] = Stage(spec, scheduler, self._outlet, self._deadlines)
            scheduler.on_broken = self._give_up
        name = profile_name(pipeline, process, replica)
        self._profiler = ProcessProfiler(name, self._endpoint.epoch, self._profile_others)
        self._handlers: dict[type[ControlMessage], Callable[[Any], object]] = {
            DataReadyMessage: self._on_data,
            SubmitMessage: self._on_submit,
            AbortMessage: self._abort,
            PeersMessage: self._membership.update,
            GoodbyeMessage: lambda message: self._membership.released(),
            ProfileMessage: self._profiler.start,
            StopProfileMessage: self._profiler.stop,
        }

    @property
    def relay_slots_in_use(self) -> int:
        return self._carrier.slots_in_use

    @property
    def routes_held(self) -> int:
        """Requests that a stage has open."""
        return max(len(self._routes), len(self._observer))

    @property
    def carried(self) -> dict[str, int]:
        """Payloads sent to other processes so far, by way."""
        return dict(self._carrier.carried)

    def relay_slots_by_reader(self) -> Counter[str]:
        """Relay slots out, by the process that reads them: "orchestrator", and "" for those that are being written.

        All that there may be are told of, with 0, too: a killed predecessor may have told of slots last.
        """
        names = self._membership.names()
        slots = Counter(dict.fromkeys((*names.values(), ""), 0))
        for epoch, count in self._carrier.lent().items():
            slots[names.get(epoch or 0, "")] += count
        return slots

    def relay_stats(self) -> dict[str, dict[str, int]]:
        """By relay: slots out, and how often a payload waited for one or went beside the pool."""
        return self._carrier.stats()

    def is_ready(self) -> bool:
        """Whether this process can be given requests: a coordinator knows of it, it is not leaving, and its schedulers
        can go on. Any thread; takes no lock and returns at once."""
        return self._membership.is_registered and not self._is_broken

    def start(self) -> None:
        for stage in self.stages.values():
            stage.start()
        self._deadlines.start()
        self._endpoint.start()
        self._membership.start()

    def drain(self, timeout: float) -> None:
        """Wait until the coordinator's running requests need this process no more, at most `timeout` seconds.

        Triton unloads all models of a server that stops at once, and knows nothing of what still goes on between them.
        """
        self._membership.leave(timeout)

    def stop(self) -> None:
        self._profiler.stop()
        self._membership.stop()
        self._deadlines.stop()
        for stage in self.stages.values():
            stage.stop()
        self._endpoint.stop()
        self._observer.stop()
        leave_directory(self._directory)

    def _give_up(self, reason: str) -> None:
        """A scheduler cannot go on, so the process has to end: the coordinator does it, and tells its requests why."""
        self._is_broken = True
        log.critical("process %s ends: %s", self.process, reason)
        self._membership.tell_overseers(BrokenMessage(self._endpoint.epoch, reason))
        time.sleep(BROKEN_GRACE)
        os.kill(os.getpid(), signal.SIGKILL)

    def _is_open(self, request_id: str) -> bool:
        return any(stage.is_open(request_id) for stage in self.stages.values())

    def _drop_requests(self) -> None:
        for stage in self.stages.values():
            for request_id in stage.open_requests():
                stage.abort(request_id)

    def _profile_others(self, path: Path, seconds: float) -> None:
        for stage in self.stages.values():
            stage.scheduler.profile_others(path, seconds)

    def _report_trace(self, request_id: str, records: tuple[StageRecord, ...]) -> None:
        host = self._carrier.site.host
        message = TraceMessage(self._endpoint.epoch, request_id, self.process, self.replica, host, records)
        try:
            self._endpoint.send(COORDINATOR, message)
        except OmniError as error:
            log.warning("a part of the trace of request %s is lost: %s", request_id, error)

    # -- receiving thread

    def _on_message(self, message: ControlMessage) -> None:
        handle = self._handlers.get(type(message))
        if handle is None:
            log.warning("a stage process got a %s", type(message).__name__)
        else:
            handle(message)

    def _abort(self, message: AbortMessage) -> None:
        if not message.stages:
            self._carrier.cleanup(message.request_id)
        for name, stage in self.stages.items():
            if not message.stages or name in message.stages:
                stage.abort(message.request_id)

    def _on_submit(self, message: SubmitMessage) -> None:
        stage = self.stages.get(message.stage)
        if stage is None or message.epoch != self._membership.coordinator or stage.is_over(message.request_id):
            self._carrier.decline(message.epoch, message.payload)
            if stage is None:
                error = Unsupported(f"process {self.process} has no stage {message.stage}")
                self._outlet.send_failure(message.stage, message.request_id, error)
            return
        self._routes.arriving(message.request_id, message.route)
        try:
            self._observer.submitted(message)
            payload = self._carrier.unpack(message.epoch, message.payload)
            stage.on_payload(message.request_id, CLIENT, payload, time.monotonic() + message.remaining)
        except OmniError as error:
            stage.fail(message.request_id, error)
        finally:
            self._routes.arrived(message.request_id)

    def _on_data(self, message: DataReadyMessage) -> None:
        stage = self.stages.get(message.target)
        if stage is None or self._membership.is_dead(message.epoch) or stage.is_over(message.request_id):
            self._carrier.decline(message.epoch, message.payload)
            return
        is_plain = message.chunk_id >= 0 and not message.traced and message.record is None
        if is_plain and stage.is_open(message.request_id):  # and so keeps what the first message brought
            self._hand_over(stage, message, time.monotonic() + message.remaining)
            return
        self._routes.arriving(message.request_id, message.route)
        try:
            self._observer.arrived(message)
            self._hand_over(stage, message, time.monotonic() + message.remaining)
        finally:
            self._routes.arrived(message.request_id)

    def _hand_over(self, stage: Stage, message: DataReadyMessage, deadline: float) -> None:
        if message.is_done:
            stage.on_stream_done(message.request_id, message.source, message.chunk_id, deadline)
            return
        if message.payload is None:
            log.warning("dropped a payload message without a payload from %s", message.source)
            return
        try:
            payload = self._carrier.unpack(message.epoch, message.payload)
        except OmniError as error:
            stage.fail(message.request_id, error)
            return
        if message.chunk_id < 0:
            stage.on_payload(message.request_id, message.source, payload, deadline)
        else:
            stage.on_chunk(message.request_id, message.source, message.chunk_id, payload, deadline)
