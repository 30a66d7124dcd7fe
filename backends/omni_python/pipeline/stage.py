"""A stage: the IO shell around a scheduler. It gathers inputs, routes outputs, and never asks what the scheduler is."""

from __future__ import annotations

import logging
import math
import threading
import time

from omni_python.pipeline.deadlines import DeadlineWatch
from omni_python.pipeline.fan_in import FanIn
from omni_python.pipeline.recent import RecentIds
from omni_python.pipeline.recording.taps import InputKind, Tap
from omni_python.pipeline.routing import OpenRequest, Routing
from omni_python.pipeline.stage_spec import StageOutlet, StageSpec
from omni_python.pipeline.stats.stages import StageStats
from omni_python.proto.errors import DeadlineExceeded, ErrorCode, OmniError
from omni_python.proto.payload import Payload
from omni_python.proto.work import IncomingMessage, OutgoingMessage
from omni_python.relay.put_off import call_later
from omni_python.scheduling.base import Scheduler
from omni_python.scheduling.fair_queue import DirectQueue

log = logging.getLogger(__name__)


class Stage:
    """Inputs come on any thread; outputs are routed on a thread of the stage's own, unless the scheduler sends itself.

    A request is over for the stage once its result was routed, it failed, or it was aborted. What still comes for
    it then (a neighbour was faster than the news) is dropped.

    Deadlines are seconds of `time.monotonic()`.
    """

    def __init__(self, spec: StageSpec, scheduler: Scheduler, outlet: StageOutlet, deadlines: DeadlineWatch) -> None:
        self.spec = spec
        self.scheduler = scheduler
        self.accepted = 0
        """Requests that ever reached the scheduler."""
        self.counts = StageStats()
        scheduler.on_began = self.counts.began
        self.taps: dict[str, Tap] = {}
        """By request, of the few that are recorded or replayed."""
        self._outlet = outlet
        self._deadlines = deadlines
        self._fan_in = (
            FanIn(spec.wait_for, spec.merge_fn, spec.wait_for_fn) if spec.wait_for and spec.merge_fn else None
        )
        self._lock = threading.Lock()
        self._over = RecentIds()
        self._open: dict[str, OpenRequest] = {}
        self._routing = Routing(spec, outlet, self._open)
        if scheduler.sends_itself:
            scheduler.outbox = DirectQueue(self._route_safely)
        self._thread = threading.Thread(
            target=scheduler.run_to_end, args=(self._route_outputs,), name=f"omni-{spec.name}", daemon=True
        )

    def start(self) -> None:
        self.scheduler.start()
        if not self.scheduler.sends_itself:
            self._thread.start()

    def stop(self) -> None:
        self.scheduler.stop()
        if not self.scheduler.sends_itself:
            self.scheduler.outbox.put(None)
            self._thread.join()

    def stats(self) -> dict[str, int]:
        """What is held now; all zero when no request is left."""
        return {"requests": len(self._open), "fan_in": len(self._fan_in or ()), **self.scheduler.stats()}

    # -- inputs

    def on_payload(self, request_id: str, source: str, payload: Payload, deadline: float = math.inf) -> None:
        try:
            if self.taps:
                payload = self._tapped(request_id, "payload", source, payload)
            with self._lock:
                request = self._admit(request_id, deadline)
                if request is None:
                    return
                ready = self._fan_in.add(request_id, source, payload) if self._fan_in is not None else payload
                if ready is not None and not request.queued:
                    self._queued(request_id, request)
            if ready is not None and not self._is_overdue(request_id, deadline):
                self._give(IncomingMessage(request_id, "new_request", ready))
        except Exception as error:
            self.fail(request_id, error)

    def on_chunk(
        self, request_id: str, source: str, chunk_id: int, payload: Payload, deadline: float = math.inf
    ) -> None:
        if self.taps:
            payload = self._tapped(request_id, "chunk", source, payload)
        with self._lock:
            request = self._admit(request_id, deadline)
            if request is None:
                return
            if not request.queued:
                self._queued(request_id, request)
            due = request.chunks_in.get(source, 0)
            request.chunks_in[source] = due + 1
        if chunk_id != due:
            self.fail(request_id, OmniError(f"chunk {chunk_id} from {source} came where {due} was due"))
            return
        self._give(IncomingMessage(request_id, "stream_chunk", payload))

    def on_stream_done(self, request_id: str, source: str, chunks: int, deadline: float = math.inf) -> None:
        if (tap := self.taps.get(request_id)) is not None:
            tap.take("done", source, None)
        with self._lock:
            request = self._admit(request_id, deadline)
            if request is None:
                return
            arrived = request.chunks_in.get(source, 0)
        if chunks != arrived:
            self.fail(request_id, OmniError(f"{source} sent {chunks} chunks and {arrived} arrived"))
            return
        self._give(IncomingMessage(request_id, "stream_done"))

    def abort(self, request_id: str) -> None:
        """Drop a request, known or not yet known."""
        self._close(request_id, ErrorCode.CANCELLED)
        self.scheduler.abort(request_id)
        self.scheduler.outbox.discard(request_id)

    def fail(self, request_id: str, error: BaseException) -> None:
        """End a request with an error that arose outside the scheduler."""
        tap = self.taps.get(request_id)
        kept = tap is not None and tap.give(OutgoingMessage(request_id, "error", error))
        if not self._close(request_id, OmniError.of(error).code):
            return
        self.scheduler.abort(request_id)
        self.scheduler.outbox.discard(request_id)
        if not isinstance(error, OmniError):
            log.error("stage %s failed request %s", self.spec.name, request_id, exc_info=error)
        if not kept:
            self._outlet.send_failure(self.spec.name, request_id, error)

    def expire(self, request_id: str) -> None:
        """The request's time is up."""
        self.fail(request_id, DeadlineExceeded(f"deadline exceeded in stage {self.spec.name}"))

    def is_over(self, request_id: str) -> bool:
        return request_id in self._over

    def is_open(self, request_id: str) -> bool:
        return request_id in self._open

    def open_requests(self) -> list[str]:
        with self._lock:
            return list(self._open)

    def _give(self, message: IncomingMessage) -> None:
        """Wakes the scheduler's thread, which can do nothing before a receiving thread is done with its message."""
        call_later(self._put, message)

    def _put(self, message: IncomingMessage) -> None:
        self.scheduler.inbox.put(message)
        if message.request_id in self._over:  # since it was put off: the scheduler has been told too early
            self.scheduler.abort(message.request_id)

    def _tapped(self, request_id: str, kind: InputKind, source: str, payload: Payload) -> Payload:
        tap = self.taps.get(request_id)
        return payload if tap is None else tap.take(kind, source, payload) or payload

    def _is_overdue(self, request_id: str, deadline: float) -> bool:
        """The watch tells too, but it may come after the scheduler has begun."""
        if deadline > time.monotonic():
            return False
        self.expire(request_id)
        return True

    def _admit(self, request_id: str, deadline: float) -> OpenRequest | None:
        """The request, if input for it is still wanted. Called with the lock held."""
        request = self._open.get(request_id)
        if request is None and request_id not in self._over:
            request = self._open[request_id] = OpenRequest(deadline)
            self.accepted += 1
            self._deadlines.add(self.spec.name, request_id, deadline)
        return request

    def _queued(self, request_id: str, request: OpenRequest) -> None:
        """The scheduler is given the first input of the request. Called with the lock held."""
        request.queued = True
        self.counts.queued(request_id)
        self._outlet.began(self.spec.name, request_id)

    def _close(self, request_id: str, code: ErrorCode | None = None) -> bool:
        """Forget a request, which has its result or ends with an error of that code; False if it was over already."""
        with self._lock:
            if request_id in self._over:
                return False
            self._over.add(request_id)
            was_open = self._open.pop(request_id, None) is not None
            self.counts.ended(request_id, code, was_open)
            if self._fan_in is not None:
                self._fan_in.discard(request_id)
        self._deadlines.discard(self.spec.name, request_id)
        if self.taps and (tap := self.taps.pop(request_id, None)) is not None:
            tap.end()
        self._outlet.closed(request_id)
        return True

    # -- outputs

    def _route_outputs(self) -> None:
        while self._route_next():
            pass

    def _route_next(self) -> bool:
        """A method of its own, so that no payload (and no relay slot) is held while waiting for the next."""
        message = self.scheduler.outbox.get()
        if message is None:
            return False
        self._route_safely(message)
        return True

    def _route_safely(self, message: OutgoingMessage) -> None:
        if message.request_id in self._over:
            return
        try:
            self._route(message)
        except Exception as error:
            self.fail(message.request_id, error)

    def _route(self, message: OutgoingMessage) -> None:
        if self.taps and message.type != "error" and self._is_kept(message):
            return
        match message.type:
            case "stream":
                self._routing.chunk(message.request_id, message.target, message.data)
            case "result":
                self._route_result(message.request_id, message.data)
            case "error":
                self.fail(message.request_id, message.data)

    def _is_kept(self, message: OutgoingMessage) -> bool:
        """Whether a tap keeps an output from going on."""
        tap = self.taps.get(message.request_id)
        if tap is None or not tap.give(message):
            return False
        if message.type == "result":
            self._outlet.check_inputs(self.spec.name, message.request_id)
            self._close(message.request_id)
        return True

    def _route_result(self, request_id: str, output: Payload) -> None:
        spec, outlet = self.spec, self._outlet
        outlet.check_inputs(spec.name, request_id)
        outlet.finished(spec.name, request_id)
        if spec.terminal:
            self._send_result(request_id, output)
            return
        self._routing.result(request_id, output)
        self._close(request_id)

    def _send_result(self, request_id: str, output: Payload) -> None:
        """To the client. The request is over before that, so that nothing is held for a client that has its answer;
        `fail`, which leaves alone what is over, would not tell of a result that cannot be sent."""
        name, timings = self.spec.name, self._outlet.timings(request_id)
        try:
            if self._close(request_id):
                self._outlet.send_result(name, request_id, output, timings)
        except Exception as error:
            self._result_lost(request_id, error)

    def _result_lost(self, request_id: str, error: Exception) -> None:
        is_ours, failure = isinstance(error, OmniError), OmniError.of(error)
        log.warning(
            "stage %s could not send a result (%s): %s", self.spec.name, request_id, failure, exc_info=not is_ours
        )
        with self._lock:
            self.counts.ended(request_id, failure.code, was_open=False)
        self._outlet.send_failure(self.spec.name, request_id, failure)
