"""Everything that one Triton model's process runs: its stages, and their connection to all others."""

from __future__ import annotations

import logging
import os
import signal
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from omni_python.control.deaths import DeathWatch
from omni_python.control.directory import leave_directory, socket_address
from omni_python.pipeline.deadlines import DeadlineWatch
from omni_python.pipeline.endpoint import Endpoint
from omni_python.pipeline.members import HELD_UP
from omni_python.pipeline.place import Place
from omni_python.pipeline.profiling import ProcessProfiler, profile_name
from omni_python.pipeline.read_only import ReadOnlyCheck
from omni_python.pipeline.recording.recorder import Recorder, record_directory
from omni_python.pipeline.routes import Routes
from omni_python.pipeline.stage import Stage, StageSpec
from omni_python.pipeline.stats.edges import EdgeStats
from omni_python.pipeline.timings import Timings
from omni_python.pipeline.tracing.process import ProcessTraces
from omni_python.proto.errors import OmniError, Unavailable, Unsupported
from omni_python.proto.messages import (
    AbortMessage,
    BrokenLinkMessage,
    BrokenMessage,
    CompleteMessage,
    ControlMessage,
    DataReadyMessage,
    GoodbyeMessage,
    LeaveMessage,
    Peer,
    PeersMessage,
    ProfileMessage,
    RecordOrder,
    RegisterMessage,
    Route,
    StopProfileMessage,
    StreamMessage,
    SubmitMessage,
    TraceMessage,
    WireError,
)
from omni_python.proto.payload import Payload
from omni_python.proto.timing import StageTiming
from omni_python.proto.trace import ORCHESTRATOR, StageRecord
from omni_python.relay.base import RelaySettings
from omni_python.scheduling.base import Scheduler

FIRST_REGISTRATION = 0.05
"""Seconds between registrations until the coordinator has answered."""

FIRST_REMOTE_REGISTRATION = 0.25
"""The same, where the coordinator is on another host: what it does not take is queued here."""

HEARTBEAT = 1.0
"""Seconds between registrations afterwards."""

BROKEN_GRACE = 2.0
"""Seconds in which the coordinator ends a process that cannot go on; then it ends by itself."""

CLIENT = "client"
"""The source of what the coordinator submits."""

_COORDINATOR = 0
"""Stands for the epoch of whichever coordinator listens at the well-known address."""

_KEEPER = 1
"""Stands for the epoch of whichever keeper listens there, on a host without the coordinator."""

log = logging.getLogger(__name__)


def coordinator_address(directory: Path, pipeline: str) -> str:
    """Where a pipeline's coordinator listens; the one address that is known beforehand."""
    return socket_address(directory, f"{pipeline}.coordinator")


class StageProcess:
    """Stages that share a process, one socket for all of them. Neighbours inside hand payloads over by reference; to
    others they go as the request's route says. `replica` tells the process from others that run the same stages."""

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
        self._deadlines = DeadlineWatch(lambda stage, request_id: self.stages[stage].expire(request_id))
        self.stages = {spec.name: Stage(spec, scheduler, self, self._deadlines) for spec, scheduler in stages}
        for stage in self.stages.values():
            stage.scheduler.on_broken = self._give_up
        self._directory = directory
        network = None if place is None else place.network
        self._endpoint = Endpoint(
            directory, self._on_message, relay, host=host, place=network, on_broken=self._on_broken_link
        )
        self._carrier = self._endpoint.carrier
        self.edges = EdgeStats()
        self._far_coordinator = "" if place is None else place.coordinator  # its URL, where it is on another host
        self._silence = 0.0 if network is None else network.silence
        self._heard = time.monotonic()  # when a coordinator on another host was heard last
        self._is_cut = False
        local = coordinator_address(directory, pipeline)
        self._endpoint.connect(_COORDINATOR, self._far_coordinator or local)
        self._overseers = [_COORDINATOR]
        if self._far_coordinator:
            self._endpoint.connect(_KEEPER, local)
            self._overseers.append(_KEEPER)
        self._view = (0, 0)  # the coordinator's epoch and the version of its newest PeersMessage
        self._peers: dict[str, list[Peer]] = {}  # by stage
        self._timings = Timings()
        self._traces = ProcessTraces(self.stages, self._report_trace)
        self._traced = self._traces.requests
        self._routes = Routes(self._is_open, self._drop)
        self._former: dict[tuple[str, int], Peer] = {}  # by process and replica: those that the last coordinator knew
        self._dead: set[int] = set()  # epochs of processes that were replaced
        self._released = threading.Event()
        self._deaths = DeathWatch()
        self._read_only = ReadOnlyCheck.if_wanted()
        name = profile_name(pipeline, process, replica)
        self._profiler = ProcessProfiler(name, self._endpoint.epoch, self._profile_others)
        recordings = record_directory()
        self._recorder = None if recordings is None else Recorder(recordings, pipeline, process, self.stages)
        self._handlers: dict[type[ControlMessage], Callable[[Any], object]] = {
            DataReadyMessage: self._on_data,
            SubmitMessage: self._on_submit,
            AbortMessage: self._abort,
            PeersMessage: self._on_peers,
            GoodbyeMessage: lambda message: self._released.set(),
            ProfileMessage: self._profiler.start,
            StopProfileMessage: self._profiler.stop,
        }
        self._registration = threading.Thread(target=self._stay_registered, name="omni-register", daemon=True)

    @property
    def relay_slots_in_use(self) -> int:
        return self._carrier.slots_in_use

    @property
    def routes_held(self) -> int:
        """Requests that a stage has open."""
        return max(len(self._routes), len(self._timings), len(self._traced))

    @property
    def carried(self) -> dict[str, int]:
        """Payloads sent to other processes so far, by way."""
        return dict(self._carrier.carried)

    def relay_slots_by_reader(self) -> Counter[str]:
        """Relay slots out, by the process that reads them: "orchestrator", and "" for those that are being written."""
        names = {peer.epoch: peer.process for peers in list(self._peers.values()) for peer in peers}
        names[self._view[0]] = "orchestrator"
        slots = Counter(dict.fromkeys(names.values(), 0))
        for epoch, count in self._carrier.lent().items():
            slots[names.get(epoch or 0, "")] += count
        return slots

    def relay_stats(self) -> dict[str, dict[str, int]]:
        """By relay: slots out, and how often a payload waited for one or went beside the pool."""
        return self._carrier.stats()

    def start(self) -> None:
        for stage in self.stages.values():
            stage.start()
        self._deadlines.start()
        self._endpoint.start()
        self._registration.start()

    def drain(self, timeout: float) -> None:
        """Wait until the coordinator's running requests need this process no more, at most `timeout` seconds.

        Triton unloads all models of a server that stops at once, and knows nothing of what still goes on between them.
        """
        if not self._tell_overseers(LeaveMessage(self._endpoint.epoch)):
            return
        end = time.monotonic() + timeout
        while self._view[0] and not self._released.wait(0.05) and time.monotonic() < end:
            pass

    def stop(self) -> None:
        self._profiler.stop()
        self._deaths.close()
        self._registration.join()
        self._deadlines.stop()
        for stage in self.stages.values():
            stage.stop()
        self._endpoint.stop()
        if self._recorder is not None:
            self._recorder.close()
        leave_directory(self._directory)

    def _give_up(self, reason: str) -> None:
        """A scheduler cannot go on, so the process has to end: the coordinator does it, and tells its requests why."""
        log.critical("process %s ends: %s", self.process, reason)
        self._tell_overseers(BrokenMessage(self._endpoint.epoch, reason))
        time.sleep(BROKEN_GRACE)
        os.kill(os.getpid(), signal.SIGKILL)

    def _tell_overseers(self, message: RegisterMessage | LeaveMessage | BrokenMessage) -> bool:
        """Tell the coordinator, and the keeper where there is one; False if one of them cannot be told."""
        told = True
        for overseer in self._overseers:
            try:
                self._endpoint.send(overseer, message)
            except OmniError as error:
                log.warning("a %s is lost: %s", type(message).__name__, error)
                told = False
        return told

    def _record(self, request_id: str, order: RecordOrder) -> None:
        if self._recorder is not None:
            self._recorder.arriving(request_id, order)

    def _is_open(self, request_id: str) -> bool:
        return any(stage.is_open(request_id) for stage in self.stages.values())

    def _drop(self, request_id: str) -> None:
        self._timings.drop(request_id)
        if self._traced:
            self._traces.close(request_id)
        if self._recorder is not None:
            self._recorder.over(request_id)

    def _profile_others(self, path: Path, seconds: float) -> None:
        for stage in self.stages.values():
            stage.scheduler.profile_others(path, seconds)

    # -- StageOutlet

    def _lend(self, source: str, target: str, request_id: str, payload: Payload) -> Payload:
        if self._read_only is None or self.stages[target].is_over(request_id):
            return payload
        return self._read_only.lend(source, target, request_id, payload)

    def began(self, stage: str, request_id: str) -> None:
        self._timings.began(request_id, stage)

    def gave(self, stage: str, request_id: str) -> None:
        self._timings.gave(request_id, stage)

    def finished(self, stage: str, request_id: str) -> None:
        self._timings.gave(request_id, stage, result=True)
        if self._traced:
            self._traces.finished(request_id, stage)

    def timings(self, request_id: str) -> tuple[StageTiming, ...]:
        return self._timings.told(request_id)

    def check_inputs(self, stage: str, request_id: str) -> None:
        if self._read_only is not None:
            self._read_only.check(stage, request_id)

    def send_payload(self, source: str, target: str, request_id: str, payload: Payload, deadline: float) -> None:
        if self._traced:
            self._traces.sent(request_id, source, target, stream=False)
        if local := self.stages.get(target):
            if self._traced:
                self._traces.arrived(request_id, source, target, stream=False)
            self.edges.by_reference(source, target)
            payload = self._lend(source, target, request_id, payload)
            local.on_payload(request_id, source, payload, deadline)
            return
        self._send_data(source, target, request_id, payload, deadline)

    def send_chunk(
        self, source: str, target: str, request_id: str, chunk_id: int, payload: Payload, deadline: float
    ) -> None:
        if self._traced:
            self._traces.sent(request_id, source, target, stream=True)
        if local := self.stages.get(target):
            if self._traced:
                self._traces.arrived(request_id, source, target, stream=True)
            self.edges.by_reference(source, target, is_chunk=True)
            payload = self._lend(source, target, request_id, payload)
            local.on_chunk(request_id, source, chunk_id, payload, deadline)
            return
        self._send_data(source, target, request_id, payload, deadline, chunk_id)

    def send_stream_done(self, source: str, target: str, request_id: str, chunks: int, deadline: float) -> None:
        if local := self.stages.get(target):
            local.on_stream_done(request_id, source, chunks, deadline)
            return
        self._send_data(source, target, request_id, None, deadline, chunks, is_done=True)

    def send_to_client(self, source: str, request_id: str, payload: Payload) -> None:
        if self._traced:
            self._traces.sent(request_id, source, ORCHESTRATOR, stream=True)
        envelope = self._carrier.pack(payload, [self._view[0]], request_id)
        self._to_coordinator(StreamMessage(self._endpoint.epoch, request_id, source, envelope))

    def send_result(self, source: str, request_id: str, payload: Payload, timings: tuple[StageTiming, ...]) -> None:
        envelope = self._carrier.pack(payload, [self._view[0]], request_id)
        self._to_coordinator(CompleteMessage(self._endpoint.epoch, request_id, source, envelope, timings=timings))

    def send_failure(self, source: str, request_id: str, error: BaseException) -> None:
        message = CompleteMessage(self._endpoint.epoch, request_id, source, error=WireError.of(error))
        try:
            self._endpoint.send(_COORDINATOR, message)
        except OmniError as lost:
            log.warning("failure of request %s in stage %s could not be reported: %s", request_id, source, lost)

    def _to_coordinator(self, message: StreamMessage | CompleteMessage) -> None:
        try:
            self._endpoint.send(_COORDINATOR, message)
        except Unavailable:
            self._carrier.take_back(message.payload, [self._view[0]])
            raise
        if message.payload is not None:
            self.edges.sent(message.source, CLIENT, message.payload, isinstance(message, StreamMessage))

    def _send_data(
        self,
        source: str,
        target: str,
        request_id: str,
        payload: Payload | None,
        deadline: float,
        chunk_id: int = -1,
        is_done: bool = False,
    ) -> None:
        route = self._routes.of(request_id)
        peer = self._peer(target, route)
        envelope = None if payload is None else self._carrier.pack(payload, [peer.epoch], request_id)
        message = DataReadyMessage(
            self._endpoint.epoch,
            request_id,
            source,
            target,
            envelope,
            chunk_id,
            is_done,
            deadline - time.monotonic(),
            route,
            self._timings.told(request_id) if chunk_id < 0 else (),
            self._recorder.order(request_id) if self._recorder is not None else None,
            traced=request_id in self._traced,
        )
        try:
            self._endpoint.send(peer.epoch, message)
        except Unavailable as error:
            self._carrier.take_back(envelope, [peer.epoch])
            raise Unavailable(f"stage {target} is not there: {error}") from None
        if envelope is not None:
            self.edges.sent(source, target, envelope, chunk_id >= 0)

    def _peer(self, stage: str, route: Route) -> Peer:
        """The process of the route that runs a stage; the only one, for requests that came without a route."""
        peers = self._peers.get(stage, [])
        for peer in peers:
            if peer.epoch in route or (not route and len(peers) == 1):
                return peer
        raise Unavailable(f"stage {stage} is not there: {'its process is gone' if peers else 'it is not registered'}")

    def closed(self, request_id: str) -> None:
        if self._traced:
            self._traces.closed(request_id)
        self._routes.closed(request_id)
        if self._read_only is not None:
            for name, stage in self.stages.items():
                if stage.is_over(request_id):
                    self._read_only.discard(name, request_id)

    def _report_trace(self, request_id: str, records: tuple[StageRecord, ...]) -> None:
        host = self._carrier.site.host
        message = TraceMessage(self._endpoint.epoch, request_id, self.process, self.replica, host, records)
        try:
            self._endpoint.send(_COORDINATOR, message)
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
        if stage is None or message.epoch != self._view[0] or stage.is_over(message.request_id):
            self._carrier.decline(message.epoch, message.payload)
            if stage is None:
                error = Unsupported(f"process {self.process} has no stage {message.stage}")
                self.send_failure(message.stage, message.request_id, error)
            return
        self._routes.arriving(message.request_id, message.route)
        try:
            if message.record is not None:
                self._record(message.request_id, message.record)
            if message.traced:
                self._traces.open(message.request_id)
                self._traces.arrived(message.request_id, ORCHESTRATOR, message.stage, stream=False)
            payload = self._carrier.unpack(message.epoch, message.payload)
            stage.on_payload(message.request_id, CLIENT, payload, time.monotonic() + message.remaining)
        except OmniError as error:
            stage.fail(message.request_id, error)
        finally:
            self._routes.arrived(message.request_id)

    def _on_data(self, message: DataReadyMessage) -> None:
        stage = self.stages.get(message.target)
        if stage is None or message.epoch in self._dead or stage.is_over(message.request_id):
            self._carrier.decline(message.epoch, message.payload)
            return
        is_plain = message.chunk_id >= 0 and not message.traced and message.record is None
        if is_plain and stage.is_open(message.request_id):  # and so keeps what the first message brought
            self._hand_over(stage, message, time.monotonic() + message.remaining)
            return
        self._routes.arriving(message.request_id, message.route)
        try:
            self._timings.heard(message.request_id, message.timings)
            if message.traced:
                self._traces.open(message.request_id)
                if not message.is_done:
                    stream = message.chunk_id >= 0
                    self._traces.arrived(message.request_id, message.source, message.target, stream)
            if message.record is not None:
                self._record(message.request_id, message.record)
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

    def _on_peers(self, message: PeersMessage) -> None:
        self._heard = time.monotonic()
        if message.epoch != self._view[0]:
            self._drop_requests()  # whatever runs here belongs to another coordinator
            if not self._far_coordinator:
                self._deaths.watch(message.epoch, message.pid)
            elif self._view[0]:
                self._endpoint.forget(self._view[0])
            self._endpoint.connect(message.epoch, message.address, message.site)
            # A new coordinator hears of the processes one by one: those that it does not name yet need not be dead.
            self._former |= {(peer.process, peer.replica): peer for peers in self._peers.values() for peer in peers}
            self._peers = {}
        elif message.version <= self._view[1]:
            return
        else:
            self._forget_returned(message.peers)
        epochs = {peer.epoch for peer in message.peers}
        gone = [peer for peers in self._peers.values() for peer in peers if peer.epoch not in epochs]
        for peer in message.peers:
            former = self._former.pop((peer.process, peer.replica), peer)
            if former.epoch != peer.epoch:
                gone.append(former)
        for peer in gone:
            if peer.epoch not in self._dead:
                self._dead.add(peer.epoch)
                self._endpoint.forget(peer.epoch)
        peers = defaultdict(list)
        for peer in message.peers:
            self._dead.discard(peer.epoch)
            if peer.process != self.process:
                self._endpoint.connect(peer.epoch, peer.address, peer.site)
            for stage in peer.stages:
                peers[stage].append(peer)
        self._peers = dict(peers)
        self._view = (message.epoch, message.version)
        self._deaths.wake()  # tell the coordinator: it submits nothing before everybody has seen the newest view

    def _forget_returned(self, peers: list[Peer]) -> None:
        """Peers that were cut off and have come back: they know nothing more of this process, not even its slots."""
        joined = {peer.epoch: peer.joined for known in self._peers.values() for peer in known}
        for peer in peers:
            if joined.get(peer.epoch, peer.joined) != peer.joined and peer.epoch != self._endpoint.epoch:
                self._endpoint.forget(peer.epoch)

    # -- registration thread

    def _stay_registered(self) -> None:
        """Registering again and again is also the heartbeat, and heals whatever message was lost."""
        first = FIRST_REMOTE_REGISTRATION if self._far_coordinator else FIRST_REGISTRATION
        before = time.monotonic()
        while not self._deaths.closed:
            now = time.monotonic()
            if now - before > HELD_UP:  # this process was, and what was sent to it may wait to be read
                self._heard += now - before
            before = now
            if self._is_cut or (self._far_coordinator and now - self._heard > self._silence):
                self._lose_touch(now - self._heard)
            message = RegisterMessage(
                self._endpoint.epoch,
                self.process,
                list(self.stages),
                self._endpoint.pid,
                self._endpoint.address,
                self._view,
                self._carrier.site,
                self.replica,
            )
            self._tell_overseers(message)
            for epoch in self._deaths.wait(HEARTBEAT if self._view[0] else first):
                if epoch == self._view[0]:
                    log.warning("the coordinator died; its requests are dropped")
                    self._view = (0, 0)
                    self._drop_requests()
                self._endpoint.forget(epoch)

    def _on_broken_link(self, epoch: int) -> None:
        if epoch in (_COORDINATOR, self._view[0]):
            self._is_cut = True
            self._deaths.wake()
            return
        try:
            self._endpoint.send(_COORDINATOR, BrokenLinkMessage(self._endpoint.epoch, epoch))
        except OmniError as error:
            log.warning("the coordinator does not know of a broken connection: %s", error)

    def _lose_touch(self, silence: float) -> None:
        """A coordinator on another host is silent, or the connection has broken: it is dead, or has given up for lost
        what is here. All other hosts have been told to forget this process, or will be, and it forgets them."""
        self._is_cut = False
        if self._view[0]:
            log.warning("cut off from the coordinator, unheard for %.0f s; its requests are dropped", silence)
            coordinator, self._view = self._view[0], (0, 0)
            self._drop_requests()
            peers = [peer for peers in self._peers.values() for peer in peers]
            far = {peer.epoch for peer in peers if self._endpoint.is_remote(peer.site)}
            for epoch in (coordinator, *far):
                self._endpoint.forget(epoch)
            self._peers = {
                stage: [peer for peer in peers if peer.epoch not in far] for stage, peers in self._peers.items()
            }
        self._heard = time.monotonic()
        self._endpoint.reconnect(_COORDINATOR, self._far_coordinator)

    def _drop_requests(self) -> None:
        for stage in self.stages.values():
            for request_id in stage.open_requests():
                stage.abort(request_id)
