"""Takes requests in, hands them to the entry stage, and brings what terminal stages make to the client."""

from __future__ import annotations

import enum
import itertools
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import Any

from omni_python.control.directory import leave_directory, remove_leftovers
from omni_python.control.liveness import PERIOD, LifeSign, remove_life_sign, write_life_sign
from omni_python.pipeline.admission import Admission
from omni_python.pipeline.answers import AnswerThreads, LastPart, ResponseSink
from omni_python.pipeline.endpoint import Endpoint
from omni_python.pipeline.members import Members
from omni_python.pipeline.membership import coordinator_address
from omni_python.pipeline.place import Place
from omni_python.pipeline.profiling import ProfileControl
from omni_python.pipeline.registry import ReplicaLoad
from omni_python.pipeline.spec import Limits, PipelineSpec
from omni_python.pipeline.stats.edges import EdgeStats
from omni_python.pipeline.submission import SubmitThreads
from omni_python.pipeline.tracing.request import RequestTrace, TracedSink
from omni_python.pipeline.tracing.store import TraceStore
from omni_python.proto.errors import Cancelled, DeadlineExceeded, InvalidArgument, OmniError, Unavailable, Unsupported
from omni_python.proto.messages import (
    AbortMessage,
    BrokenLinkMessage,
    BrokenMessage,
    CompleteMessage,
    ControlMessage,
    DrainMessage,
    Envelope,
    GoneMessage,
    LeaveMessage,
    Peer,
    ProfileMessage,
    RecordOrder,
    RegisterMessage,
    Route,
    StopProfileMessage,
    StreamMessage,
    SubmitMessage,
    TraceMessage,
)
from omni_python.proto.payload import Payload
from omni_python.proto.request import OmniRequest
from omni_python.proto.timing import StageTiming
from omni_python.proto.trace import CLIENT
from omni_python.proto.trace_context import TraceWish
from omni_python.relay.base import RelaySettings

CANCEL_POLL = 0.02
"""Seconds between looks at whether clients are still there."""

LOOKS = 10
"""Clients that are looked at each time, in turns. A look takes 50 us of CPU: all together 2.5 % of a core at most."""

DOZE = 1.0
"""Seconds without a request after which the watcher sleeps until one comes. To wake it costs as much as many looks."""

REPORT_TIME = 0.1
"""Seconds past a deadline in which a stage may tell that it has dropped the request, before the coordinator ends it."""

_WHOLE_REQUEST = (InvalidArgument, Unsupported, DeadlineExceeded)
"""Errors that are about the request and not about what failed: no part of the answer is wanted then."""

log = logging.getLogger(__name__)


class RequestState(enum.Enum):
    PENDING = "pending"  # admitted, not yet on its way
    RUNNING = "running"  # on its way to the entry stage, or further
    COMPLETED = "completed"
    FAILED = "failed"
    ABORTED = "aborted"


@dataclass(slots=True)
class _Request:
    id: str
    sink: ResponseSink
    terminals: frozenset[str]
    processes: frozenset[str]
    admitted: float
    deadline: float
    payload: OmniRequest | None
    stream: bool
    record: RecordOrder | None
    state: RequestState = RequestState.PENDING
    completed: set[str] = field(default_factory=set)
    failed: set[str] = field(default_factory=set)
    route: Route = ()  # the processes that it was given to
    error: OmniError | None = None  # what the failed terminals failed with
    timings: dict[str, StageTiming] = field(default_factory=dict)  # by stage, relative to the admission
    trace: RequestTrace | None = None
    is_answered: bool = False  # in part, by other threads, behind which the rest has to wait


class Coordinator:
    """`recover(process, replica, start_s)` is called when a stage process died that had taken `start_s` seconds to
    start; it returns at once."""

    def __init__(
        self,
        spec: PipelineSpec,
        directory: Path,
        relay: RelaySettings,
        recover: Callable[[str, int, float], None] | None = None,
        limits: Limits | None = None,
        host: str | None = None,
        traces: TraceStore | None = None,
        place: Place | None = None,
    ) -> None:
        self.spec = spec
        self.limits = limits or Limits()
        self.finished = dict.fromkeys((RequestState.COMPLETED, RequestState.FAILED, RequestState.ABORTED), 0)
        """Requests by final state."""
        self.edges = EdgeStats()
        """What went to the entry stage."""
        self.traces = TraceStore() if traces is None else traces
        self._directory = directory
        address = coordinator_address(directory, spec.name)
        network = None if place is None else place.network
        self._endpoint = Endpoint(
            directory,
            self._on_message,
            relay,
            address,
            host,
            network,
            lambda epoch: self._members.link_broken(epoch),
        )
        self._carrier = self._endpoint.carrier
        self._members = Members(
            spec,
            self._endpoint,
            self.limits.silence,
            self._on_lost,
            self._on_given_up,
            recover or (lambda process, replica, start_s: None),
        )
        self._registry = self._members.registry
        self._profiles = ProfileControl(spec, self._registry, self._endpoint)
        self._requests: dict[str, _Request] = {}
        self._admission: Admission[_Request] = Admission(self.limits.max_in_flight, self.limits.max_queued)
        self._draining = False
        self._next_sign = 0.0
        self._dozing = False
        self._to_look_at: deque[_Request] = deque()
        self._lock = threading.Lock()
        self._numbers = itertools.count(1)
        self._handlers: dict[type[ControlMessage], Callable[[Any], object]] = {
            StreamMessage: self._on_stream,
            CompleteMessage: self._on_complete,
            TraceMessage: lambda message: self.traces.add(message),
            RegisterMessage: self._members.register,
            LeaveMessage: lambda message: self._members.leave(message.epoch),
            BrokenMessage: self._members.end,
            BrokenLinkMessage: lambda message: self._members.link_broken(message.to),
            GoneMessage: self._members.gone,
            DrainMessage: lambda message: self.drain(message.end),
            ProfileMessage: self._profiles.handle,
            StopProfileMessage: self._profiles.handle,
        }
        self._submissions = SubmitThreads(self.limits.submit_threads, self._submit_safely)
        self._answers = AnswerThreads(self.limits.sender_threads)
        self._watcher = threading.Thread(target=self._watch, name="omni-watch", daemon=True)

    def start(self) -> None:
        remove_leftovers(self._directory)
        self._endpoint.start()
        self._submissions.start()
        self._answers.start()
        self._watcher.start()

    def stop(self) -> None:
        """Fail what is still running and stop all threads."""
        self._members.close()
        self._watcher.join()
        self._fail_all("the server is stopping")
        self._submissions.stop()
        self._answers.stop()
        self.traces.close()
        self._endpoint.stop()
        remove_life_sign(self._directory, self.spec.name)
        leave_directory(self._directory)

    def _fail_all(self, why: str) -> None:
        for request in list(self._requests.values()):
            self._end(request, RequestState.FAILED, Unavailable(why))

    def stats(self) -> dict[str, int]:
        """What is held now; all zero when no request is left."""
        queued = self._admission.waiting
        return {
            "requests": len(self._requests),
            "queued": queued,
            "relay_slots": self._carrier.slots_in_use,
            "traces": len(self.traces),
        }

    def replica_loads(self) -> list[ReplicaLoad]:
        """How many requests each replica of each process works on now."""
        return self._registry.loads()

    def serves(self, process: str) -> bool:
        """Whether a replica of the process is there."""
        return self._registry.serves(process)

    def check_room(self) -> bool:
        """Whether a request could start at once. Raises `Unavailable` where `submit` would: before work is put into one
        that cannot be taken."""
        self._admission.check()
        return not self._admission.is_full

    def submit(
        self,
        request: OmniRequest,
        sink: ResponseSink,
        deadline: float | None = None,
        order: RecordOrder | None = None,
        wish: TraceWish | None = None,
    ) -> str:
        """Admit a request, with `deadline` seconds for it, and return its id at once; all else reaches `sink`. `order`
        names what is recorded of it, and `wish` says whether it is traced.

        Raises `Unavailable` when too many are in flight and waiting, or so many that this one would be late, or the
        server is to stop.
        """
        seconds = self.limits.deadline if deadline is None else min(deadline, self.limits.deadline)
        terminals = self.spec.active_terminals(request)
        request_id = f"{self._endpoint.epoch:x}-{next(self._numbers)}"
        processes = self.spec.needed_processes(terminals)
        now = time.monotonic()
        record = _Request(request_id, sink, terminals, processes, now, now + seconds, request, request.stream, order)
        if self.traces.wants(wish):
            self._trace(record, wish or TraceWish())
        with self._lock:
            starts = self._admission.admit(request_id, record, seconds)
            self._requests[request_id] = record
            was_dozing, self._dozing = self._dozing, False
            if record.trace is not None:
                self.traces.begin(record.trace)
        if was_dozing:
            self._members.wake()
        if starts:
            self._start(record, request.has_media)
        return request_id

    def _start(self, request: _Request, has_media: bool) -> None:
        """Submit, on another thread where that may have to wait: for processes, or for room in the relay. Else waking
        one costs more than it spares."""
        may_wait = has_media or self._members.refusal(request.processes) is not None
        route = None if may_wait else self._registry.choose(request.processes, 0.0)
        if route is None:
            self._submissions.put(request)
        else:
            self._submit_safely(request, route)

    def drain(self, end: bool = False) -> None:
        """Admit nothing more: the server is to be stopped once what is in flight has ended. `end` fails that now."""
        with self._lock:
            self._admission.close("the server is shutting down; try again later or elsewhere")
            self._draining = True
        if end:
            self._fail_all("the server is shutting down, and the time for requests to end is over")
        self._members.wake()

    def abort(self, request_id: str, error: OmniError | None = None) -> None:
        """End a request early, in every stage. Unknown and finished ones are left alone."""
        request = self._requests.get(request_id)
        if request is not None:
            self._end(request, RequestState.ABORTED, error or Cancelled("the request was cancelled"))

    def give_up(self, process: str, replica: int, why: str) -> None:
        """A process will not come back: refuse at once what needs it where it was the last of its replicas, and say
        why."""
        self._members.give_up(process, replica, why)

    def _on_given_up(self) -> None:
        for request in list(self._requests.values()):
            if request.state is RequestState.PENDING and (error := self._members.refusal(request.processes)):
                self._end(request, RequestState.FAILED, error)

    def _trace(self, request: _Request, wish: TraceWish) -> None:
        host = self._carrier.site.host
        request.trace = RequestTrace(request.id, self.spec.name, self.spec.entry_stage, host, wish)
        request.sink = TracedSink(request.sink, request.trace, request.stream, self.traces.end)

    # -- submit threads, or at once where nothing has to be waited for

    def _submit_safely(self, request: _Request, route: Route | None = None) -> None:
        try:
            self._submit(request, route)
        except Exception as error:
            if not isinstance(error, OmniError):
                log.error("request %s could not be submitted", request.id, exc_info=error)
            self._end(request, RequestState.FAILED, OmniError.of(error))

    def _submit(self, request: _Request, route: Route | None) -> None:
        if request.trace is not None:
            request.trace.begins()
        payload = self._assign(request, self._choose(request) if route is None else route)
        if payload is None:
            return
        entry = self._registry.runs(request.route, self.spec.entry_stage)
        if entry is None:
            raise Unavailable(f"stage {self.spec.entry_stage} is not there")
        envelope = self._carrier.pack(payload, [entry.epoch], request.id)
        remaining = request.deadline - time.monotonic()
        if request.trace is not None:
            request.trace.submits()
        message = SubmitMessage(
            self._endpoint.epoch,
            request.id,
            self.spec.entry_stage,
            envelope,
            remaining,
            request.route,
            request.record,
            traced=request.trace is not None,
        )
        try:
            self._endpoint.send(entry.epoch, message)
        except Unavailable as error:
            self._carrier.take_back(envelope, [entry.epoch])
            raise Unavailable(f"stage {self.spec.entry_stage} is not there: {error}") from error
        with self._lock:
            self.edges.sent(CLIENT, self.spec.entry_stage, envelope)

    def _choose(self, request: _Request) -> Route:
        """The replicas that are to serve a request; waits for those that are not there."""
        if (refusal := self._members.refusal(request.processes)) is not None:
            raise refusal
        route = self._registry.choose(request.processes, self.limits.grace)
        if route is None:
            missing = ", ".join(self._registry.missing(request.processes)) or "none, but not all know of the others"
            raise Unavailable(f"processes of pipeline {self.spec.name} that are not running: {missing}")
        return route

    def _assign(self, request: _Request, route: Route) -> OmniRequest | None:
        """Let these replicas serve a request, and take its payload; None if it is over already."""
        with self._lock:
            payload, request.payload = request.payload, None
            if request.state is RequestState.PENDING and payload is not None:
                request.route = route
                request.state = RequestState.RUNNING  # what ends it from now on tells these processes, too
                return payload
        self._registry.release(route)
        return None

    # -- receiving thread

    def _on_message(self, message: ControlMessage) -> None:
        handle = self._handlers.get(type(message))
        if handle is None:
            log.warning("the coordinator got a %s", type(message).__name__)
        else:
            handle(message)

    def _on_stream(self, message: StreamMessage) -> None:
        request = self._requests.get(message.request_id)
        payload = self._payload(request, message.epoch, message.payload)
        if request is not None and payload is not None:
            if request.trace is not None:
                request.trace.work.arrived(message.source, stream=True)
            request.is_answered = True
            self._answers.put_chunk(request.id, request.sink, payload)

    def _on_complete(self, message: CompleteMessage) -> None:
        request = self._requests.get(message.request_id)
        if message.error is not None:
            if request is not None:
                self._fail_part(request, {message.source}, message.error.exception())
            return
        payload = self._payload(request, message.epoch, message.payload)
        if request is None or payload is None:
            return
        if message.source in request.failed:
            return
        if message.source not in request.terminals:
            self._end(request, RequestState.FAILED, OmniError(f"unexpected result from stage {message.source}"))
            return
        if request.trace is not None:
            request.trace.work.arrived(message.source, stream=False)
        since = time.monotonic() - request.admitted
        for ago in message.timings:
            request.timings.setdefault(ago.stage, ago.shifted(since))
        request.completed.add(message.source)
        if request.completed == request.terminals:
            self._complete(request, message.source, payload)
            return
        request.is_answered = True
        self._answers.put(request.id, partial(request.sink.result, message.source, payload))
        self._end_if_complete(request)

    def _complete(self, request: _Request, stage: str, payload: Payload) -> None:
        """The last of a request's results is there. Where it is all that there is to send, and little, it is sent on
        this thread; unless that has to wait for the rest of a trace, which this thread receives."""
        if not self._release(request, RequestState.COMPLETED):
            return
        timings = sorted(request.timings.values(), key=_start)
        answer = LastPart(request.sink, stage, payload, timings)
        is_whole = not request.is_answered and request.trace is None and answer.is_small
        if not (is_whole and self._endpoint.direct.take(answer)):
            self._answers.put(request.id, answer)
        self._members.dismiss()

    def _end_if_complete(self, request: _Request) -> None:
        if request.error is not None and request.completed | request.failed == request.terminals:
            self._end(request, RequestState.FAILED, request.error)

    def _fail_part(self, request: _Request, stages: Collection[str], error: OmniError) -> None:
        """Stages failed a request. Streamed answers that do not depend on them go on to their end, and the request
        fails after that; it fails at once where none is left, or where nothing can be sent before the end anyway."""
        lost = (self.spec.fed_by(stages) & request.terminals) - request.completed - request.failed
        left = request.terminals - request.completed - request.failed - lost
        if not request.stream or isinstance(error, _WHOLE_REQUEST) or (left and not lost and not request.failed):
            self._end(request, RequestState.FAILED, error)
            return
        if not lost:
            return
        request.failed |= lost
        request.error = request.error or error
        if left:
            log.warning("request %s goes on without %s: %s", request.id, ", ".join(sorted(lost)), error)
            self._members.tell_route(
                request.route, AbortMessage(self._endpoint.epoch, request.id, self.spec.unneeded(left))
            )
        self._end_if_complete(request)

    def _payload(self, request: _Request | None, epoch: int, envelope: Envelope | None) -> Payload | None:
        if request is None or envelope is None:
            self._carrier.decline(epoch, envelope)
            return None
        try:
            return self._carrier.unpack(epoch, envelope)
        except OmniError as error:
            self._end(request, RequestState.FAILED, error)
            return None

    # -- watching thread

    def _watch(self) -> None:
        next_check = last_busy = 0.0
        while not self._members.closed:
            with self._lock:
                self._dozing = not self._requests and time.monotonic() - last_busy > DOZE
            self._members.wait(1.0 if self._dozing else max(0.0, next_check - time.monotonic()))
            if (now := time.monotonic()) >= next_check:
                next_check = now + CANCEL_POLL
                if self._requests:
                    last_busy = now
                self._check_clients()
                self._check_deadlines()
                self._members.check_heartbeats()
                self._show_life()
                self._answers.relieve()
                self._endpoint.direct.relieve()

    def _check_clients(self) -> None:
        if not self._to_look_at:  # many are served before their first look
            old = time.monotonic() - CANCEL_POLL
            self._to_look_at.extend(request for request in list(self._requests.values()) if request.admitted <= old)
        for _ in range(min(LOOKS, len(self._to_look_at))):
            request = self._to_look_at.popleft()
            if request.id in self._requests and request.sink.is_cancelled():
                self._end(request, RequestState.ABORTED, Cancelled("the client cancelled the request"))

    def _check_deadlines(self) -> None:
        now = time.monotonic()
        for request in list(self._requests.values()):
            if now > request.deadline and request.state is RequestState.PENDING:
                error = DeadlineExceeded("deadline exceeded before a stage took the request")
                self._end(request, RequestState.FAILED, error)
            elif now > request.deadline + REPORT_TIME:
                waiting = ", ".join(sorted(request.terminals - request.completed - request.failed))
                error = DeadlineExceeded(f"deadline exceeded while waiting for stage {waiting}")
                self._end(request, RequestState.FAILED, error)

    def _show_life(self) -> None:
        now = time.monotonic()
        if now < self._next_sign and not self._draining:
            return
        self._next_sign = now + PERIOD
        try:
            complete = not self._registry.missing(self.spec.stages)
            sign = LifeSign(self._endpoint.pid, len(self._requests), self._draining, complete)
            write_life_sign(self._directory, self.spec.name, sign)
        except OSError as error:
            log.warning("no sign of life could be left: %s", error)

    def _on_lost(self, peer: Peer, what: str) -> None:
        """With a stage process whatever part of the running requests it held is gone."""
        name = self.spec.replica_name(peer.process, peer.replica)
        for request in list(self._requests.values()):
            if peer.epoch in request.route:  # those that have no route yet may find the process restored
                where = f" on host {peer.site.name}" if peer.site.name else ""
                error = Unavailable(f"process {name} (stages {', '.join(peer.stages)}){where} {what}")
                self._fail_part(request, peer.stages, error)

    # -- the end of a request

    def _end(self, request: _Request, state: RequestState, error: OmniError) -> None:
        """End a request with an error; nothing happens where it has ended."""
        if self._release(request, state, late=isinstance(error, DeadlineExceeded)):
            self._members.tell_route(request.route, AbortMessage(self._endpoint.epoch, request.id))
            self._answers.put(request.id, lambda: request.sink.fail(error))
            self._members.dismiss()

    def _release(self, request: _Request, state: RequestState, late: bool = False) -> bool:
        """Bring a request to its one final state, and let go what it held; False where it has one."""
        with self._lock:
            if self._requests.pop(request.id, None) is None:
                return False
            request.state = state
            self.finished[state] += 1
            starting = self._admission.release(request.id, state is RequestState.COMPLETED, late)
        self._registry.release(request.route)
        for following in starting:
            self._submissions.put(following)
        self._carrier.cleanup(request.id)
        return True


_start = attrgetter("start")
