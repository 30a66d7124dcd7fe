"""How requests get from the coordinator to the entry stage."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from omni_python.pipeline.endpoint import Endpoint
from omni_python.pipeline.members import Members
from omni_python.pipeline.requests import Request, Requests, RequestState
from omni_python.pipeline.spec import Limits, PipelineSpec
from omni_python.pipeline.stats.edges import EdgeStats
from omni_python.pipeline.submission import SubmitThreads
from omni_python.proto.errors import OmniError, Unavailable
from omni_python.proto.messages import Route, SubmitMessage
from omni_python.proto.request import OmniRequest
from omni_python.proto.trace import CLIENT

log = logging.getLogger(__name__)


class Submitter:
    """Any thread. `fail(request, error)` is called for those that cannot be submitted.

    Requests whose processes are not there (yet, or again) are set aside for their grace: on a submit thread they would
    hold up those whose processes are.
    """

    def __init__(
        self,
        spec: PipelineSpec,
        limits: Limits,
        endpoint: Endpoint,
        members: Members,
        requests: Requests,
        fail: Callable[[Request, OmniError], None],
    ) -> None:
        self.edges = EdgeStats()
        """What went to the entry stage."""
        self._spec = spec
        self._grace = limits.grace
        self._endpoint = endpoint
        self._carrier = endpoint.carrier
        self._members = members
        self._registry = members.registry
        self._requests = requests
        self._fail = fail
        self._counting = threading.Lock()
        self._threads = SubmitThreads(limits.submit_threads, self._take)
        self._aside: dict[str, Request] = {}  # by id: those that wait for processes

    def start(self) -> None:
        self._threads.start()

    def stop(self) -> None:
        self._threads.stop()

    def submit(self, request: Request, has_media: bool) -> None:
        """Submit an admitted request, on another thread where that may have to wait: for processes, or for room in the
        relay. Else waking one costs more than it spares."""
        may_wait = has_media or self._members.refusal(request.processes) is not None
        route = None if may_wait else self._registry.choose(request.processes)
        if route is None:
            self.submit_later(request)
        else:
            self._submit(request, route)

    def submit_later(self, request: Request) -> None:
        """On another thread, in any case."""
        request.grace_ends = time.monotonic() + self._grace
        self._threads.put(request.id, request)

    def withdraw(self, request: Request) -> None:
        """A request has ended: let go of it, wherever it waits."""
        self._threads.discard(request.id)
        self._aside.pop(request.id, None)

    def look_at_waiting(self) -> None:
        """Go on with those set aside whose processes are there now, and fail those whose grace is over. To be called
        again and again: nobody tells of processes that have come."""
        now = time.monotonic()
        are_there: dict[frozenset[str], bool] = {}
        for request in list(self._aside.values()):
            if request.processes not in are_there:
                are_there[request.processes] = self._registry.can_serve(request.processes)
            if are_there[request.processes]:
                self._aside.pop(request.id, None)
                self._threads.put(request.id, request)
            elif now >= request.grace_ends or request.state is not RequestState.PENDING:
                self._aside.pop(request.id, None)
                self._fail(request, self._not_running(request))

    def _not_running(self, request: Request) -> Unavailable:
        missing = ", ".join(self._registry.missing(request.processes)) or "none, but not all know of the others"
        return Unavailable(f"processes of pipeline {self._spec.name} that are not running: {missing}")

    def _take(self, request: Request) -> None:
        """On a submit thread."""
        if request.state is not RequestState.PENDING:
            return
        if (refusal := self._members.refusal(request.processes)) is not None:
            self._fail(request, refusal)
        elif (route := self._registry.choose(request.processes)) is not None:
            self._submit(request, route)
        else:
            self._aside[request.id] = request

    def _submit(self, request: Request, route: Route) -> None:
        try:
            if request.trace is not None:
                request.trace.begins()
            payload = self._assign(request, route)
            if payload is not None:
                self._send(request, payload)
        except Exception as error:
            if not isinstance(error, OmniError):
                log.error("request %s could not be submitted", request.id, exc_info=error)
            self._fail(request, OmniError.of(error))

    def _gone(self, request: Request) -> Unavailable:
        """A route has a replica of each of the request's processes, in their order."""
        names = sorted(request.processes)
        gone = [name for name, epoch in zip(names, request.route, strict=True) if self._registry.peer(epoch) is None]
        return Unavailable(f"processes of pipeline {self._spec.name} that are gone: {', '.join(gone)}")

    def _assign(self, request: Request, route: Route) -> OmniRequest | None:
        payload = self._requests.assign(request, route)
        if payload is None:
            self._registry.release(route)
        return payload

    def _send(self, request: Request, payload: OmniRequest) -> None:
        stage = self._spec.entry_stage
        entry = self._registry.runs(request.route, stage)
        if entry is None:  # since they were chosen: what tells of deaths may have looked before the request had them
            raise self._gone(request)
        envelope = self._carrier.pack(payload, [entry.epoch], request.id)
        remaining = request.deadline - time.monotonic()
        if request.trace is not None:
            request.trace.submits()
        message = SubmitMessage(
            self._endpoint.epoch,
            request.id,
            stage,
            envelope,
            remaining,
            request.route,
            request.record,
            traced=request.trace is not None,
        )
        try:
            self._endpoint.send(entry.epoch, message)
        except OmniError as error:
            self._carrier.take_back(envelope, [entry.epoch])
            if isinstance(error, Unavailable):
                raise Unavailable(f"stage {stage} is not there: {error}") from error
            raise
        with self._counting:
            self.edges.sent(CLIENT, stage, envelope)
