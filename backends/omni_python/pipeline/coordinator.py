"""Takes requests in, hands them to the entry stage, and brings what terminal stages make to the client."""

from __future__ import annotations

import itertools
import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from omni_python.control.directory import leave_directory, remove_leftovers
from omni_python.control.liveness import remove_life_sign
from omni_python.pipeline.answer_parts import ResponseSink
from omni_python.pipeline.answers import AnswerThreads
from omni_python.pipeline.collector import Collector
from omni_python.pipeline.endpoint import Endpoint
from omni_python.pipeline.members import Members
from omni_python.pipeline.membership import coordinator_address
from omni_python.pipeline.place import Place
from omni_python.pipeline.profiling import ProfileControl
from omni_python.pipeline.registry import ReplicaLoad
from omni_python.pipeline.requests import Request, Requests, RequestState
from omni_python.pipeline.spec import Limits, PipelineSpec
from omni_python.pipeline.submitter import Submitter
from omni_python.pipeline.tracing.request import RequestTrace, TracedSink
from omni_python.pipeline.tracing.store import TraceStore
from omni_python.pipeline.watcher import Watcher
from omni_python.proto.errors import Cancelled, Unavailable
from omni_python.proto.messages import (
    BrokenLinkMessage,
    BrokenMessage,
    CompleteMessage,
    ControlMessage,
    DrainMessage,
    GoneMessage,
    LeaveMessage,
    Peer,
    ProfileMessage,
    RecordOrder,
    RegisterMessage,
    StopProfileMessage,
    StreamMessage,
    TraceMessage,
)
from omni_python.proto.request import OmniRequest
from omni_python.proto.trace_context import TraceWish
from omni_python.relay.base import RelaySettings

log = logging.getLogger(__name__)


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
        self._requests = Requests(
            self.limits,
            lambda trace: self.traces.begin(trace),
            self._members.wake,
            lambda request: self._submitter.withdraw(request),
        )
        self.finished = self._requests.finished
        """Requests by final state."""
        self._submitter = Submitter(
            spec,
            self.limits,
            self._endpoint,
            self._members,
            self._requests,
            lambda request, error: self._end(request, RequestState.FAILED, error),
        )
        self.edges = self._submitter.edges
        self._answers = AnswerThreads(self.limits.sender_threads)
        self._collector = Collector(
            spec, self._endpoint, self._members, self._requests, self._answers, self._submitter.submit_later
        )
        self._end = self._collector.end
        pid = self._endpoint.pid
        self._watcher = Watcher(spec.name, directory, pid, self._requests, self._members, self._end, self._relieve)
        self._numbers = itertools.count(1)
        self._handlers: dict[type[ControlMessage], Callable[[Any], object]] = {
            StreamMessage: self._collector.take_chunk,
            CompleteMessage: self._collector.take_result,
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

    def start(self) -> None:
        remove_leftovers(self._directory)
        self._endpoint.start()
        self._submitter.start()
        self._answers.start()
        self._watcher.start()

    def stop(self) -> None:
        """Fail what is still running and stop all threads."""
        self._members.close()
        self._watcher.join()
        self._endpoint.stop_receiving()  # first: what is being received may yet end a request, and its answer be sent
        self._fail_all("the server is stopping")
        self._submitter.stop()
        self._answers.stop()
        self.traces.close()
        self._endpoint.stop()
        remove_life_sign(self._directory, self.spec.name)
        leave_directory(self._directory)

    def _fail_all(self, why: str) -> None:
        for request in self._requests:
            self._end(request, RequestState.FAILED, Unavailable(why))

    def stats(self) -> dict[str, int]:
        """What is held now; all zero when no request is left."""
        return {
            "requests": len(self._requests),
            "queued": self._requests.queued,
            "relay_slots": self._carrier.slots_in_use,
            "traces": len(self.traces),
        }

    def replica_loads(self) -> list[ReplicaLoad]:
        """How many requests each replica of each process works on now."""
        return self._registry.loads()

    def serves(self, process: str) -> bool:
        """Whether a replica of the process is there."""
        return self._registry.serves(process)

    def is_ready(self) -> bool:
        """Whether requests of every kind are taken and can be served: of each process, on whatever host, a replica is
        there that is not leaving. Any thread; takes no lock and returns at once."""
        return not (self._requests.closed or self._members.closed) and self._registry.serves_all()

    def check_room(self) -> bool:
        """Whether a request could start at once. Raises `Unavailable` where `submit` would: before work is put into one
        that cannot be taken."""
        return self._requests.check_room()

    def submit(
        self,
        request: OmniRequest,
        sink: ResponseSink,
        deadline: float | None = None,
        order: RecordOrder | None = None,
        wish: TraceWish | None = None,
        cancel_key: str = "",
    ) -> str:
        """Admit a request, with `deadline` seconds for it, and return its id at once; all else reaches `sink`. `order`
        names what is recorded of it, `wish` says whether it is traced, and `cancel` ends it by its `cancel_key`.

        Raises `Unavailable` when too many are in flight and waiting, or so many that this one would be late, or the
        server is to stop.
        """
        seconds = self.limits.deadline if deadline is None else min(deadline, self.limits.deadline)
        terminals = self.spec.active_terminals(request)
        request_id = f"{self._endpoint.epoch:x}-{next(self._numbers)}"
        processes = self.spec.needed_processes(terminals)
        now = time.monotonic()
        record = Request(
            request_id, sink, terminals, processes, now, now + seconds, request, request.stream, order, cancel_key
        )
        if self.traces.wants(wish):
            self._trace(record, wish or TraceWish())
        if self._requests.admit(record, seconds):
            self._submitter.submit(record, request.has_media)
        return request_id

    def drain(self, end: bool = False) -> None:
        """Admit nothing more: the server is to be stopped once what is in flight has ended. `end` fails that now."""
        self._requests.close("the server is shutting down; try again later or elsewhere")
        if end:
            self._fail_all("the server is shutting down, and the time for requests to end is over")
        self._members.wake()

    def abort(self, request_id: str) -> None:
        """End a request early, in every stage. Unknown and finished ones are left alone."""
        request = self._requests.get(request_id)
        if request is not None:
            self._end(request, RequestState.ABORTED, Cancelled("the request was cancelled"))

    def cancel(self, key: str) -> bool:
        """End the request that was submitted with this `cancel_key`, as `abort`; False where there is none."""
        found = [request.id for request in self._requests if request.cancel_key == key]
        for request_id in found:
            self.abort(request_id)
        return bool(found)

    def give_up(self, process: str, replica: int, why: str) -> None:
        """A process will not come back: refuse at once what needs it where it was the last of its replicas, and say
        why."""
        self._members.give_up(process, replica, why)

    def _on_given_up(self) -> None:
        for request in self._requests:
            if request.state is RequestState.PENDING and (error := self._members.refusal(request.processes)):
                self._end(request, RequestState.FAILED, error)

    def _trace(self, request: Request, wish: TraceWish) -> None:
        host = self._carrier.site.host
        request.trace = RequestTrace(request.id, self.spec.name, self.spec.entry_stage, host, wish)
        request.sink.traced(request.trace.trace_id)
        request.sink = TracedSink(request.sink, request.trace, request.stream, self.traces.end)

    # -- receiving thread

    def _on_message(self, message: ControlMessage) -> None:
        handle = self._handlers.get(type(message))
        if handle is None:
            log.warning("the coordinator got a %s", type(message).__name__)
        else:
            handle(message)

    # -- watching thread

    def _relieve(self) -> None:
        self._submitter.look_at_waiting()
        self._answers.relieve()
        self._endpoint.direct.relieve()

    def _on_lost(self, peer: Peer, what: str) -> None:
        """With a stage process whatever part of the running requests it held is gone."""
        name = self.spec.replica_name(peer.process, peer.replica)
        for request in self._requests:
            if peer.epoch in request.route:  # those that have no route yet may find the process restored
                where = f" on host {peer.site.name}" if peer.site.name else ""
                error = Unavailable(f"process {name} (stages {', '.join(peer.stages)}){where} {what}")
                self._collector.fail_part(request, peer.stages, error)
