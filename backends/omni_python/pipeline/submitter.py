"""How requests get from the coordinator to the entry stage."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from omni_python.pipeline.endpoint import Endpoint
from omni_python.pipeline.members import Members
from omni_python.pipeline.requests import Request, Requests
from omni_python.pipeline.spec import Limits, PipelineSpec
from omni_python.pipeline.stats.edges import EdgeStats
from omni_python.pipeline.submission import SubmitThreads
from omni_python.proto.errors import OmniError, Unavailable
from omni_python.proto.messages import Route, SubmitMessage
from omni_python.proto.request import OmniRequest
from omni_python.proto.trace import CLIENT

log = logging.getLogger(__name__)


class Submitter:
    """Any thread. `fail(request, error)` is called for those that cannot be submitted."""

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
        self._threads = SubmitThreads(limits.submit_threads, self._submit)

    def start(self) -> None:
        self._threads.start()

    def stop(self) -> None:
        self._threads.stop()

    def submit(self, request: Request, has_media: bool) -> None:
        """Submit an admitted request, on another thread where that may have to wait: for processes, or for room in the
        relay. Else waking one costs more than it spares."""
        may_wait = has_media or self._members.refusal(request.processes) is not None
        route = None if may_wait else self._registry.choose(request.processes, 0.0)
        if route is None:
            self._threads.put(request)
        else:
            self._submit(request, route)

    def submit_later(self, request: Request) -> None:
        """On another thread, in any case."""
        self._threads.put(request)

    def _submit(self, request: Request, route: Route | None = None) -> None:
        try:
            if request.trace is not None:
                request.trace.begins()
            payload = self._assign(request, self._choose(request) if route is None else route)
            if payload is not None:
                self._send(request, payload)
        except Exception as error:
            if not isinstance(error, OmniError):
                log.error("request %s could not be submitted", request.id, exc_info=error)
            self._fail(request, OmniError.of(error))

    def _choose(self, request: Request) -> Route:
        """The replicas that are to serve a request; waits for those that are not there."""
        if (refusal := self._members.refusal(request.processes)) is not None:
            raise refusal
        route = self._registry.choose(request.processes, self._grace)
        if route is None:
            missing = ", ".join(self._registry.missing(request.processes)) or "none, but not all know of the others"
            raise Unavailable(f"processes of pipeline {self._spec.name} that are not running: {missing}")
        return route

    def _assign(self, request: Request, route: Route) -> OmniRequest | None:
        payload = self._requests.assign(request, route)
        if payload is None:
            self._registry.release(route)
        return payload

    def _send(self, request: Request, payload: OmniRequest) -> None:
        stage = self._spec.entry_stage
        entry = self._registry.runs(request.route, stage)
        if entry is None:
            raise Unavailable(f"stage {stage} is not there")
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
