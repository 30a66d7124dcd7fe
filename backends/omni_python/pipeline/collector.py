"""How what the terminal stages make of a request becomes one answer, and how each request comes to its end."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection
from functools import partial
from operator import attrgetter

from omni_python.pipeline.answer_parts import LastPart
from omni_python.pipeline.answers import AnswerThreads
from omni_python.pipeline.endpoint import Endpoint
from omni_python.pipeline.members import Members
from omni_python.pipeline.requests import Request, Requests, RequestState
from omni_python.pipeline.spec import PipelineSpec
from omni_python.proto.errors import DeadlineExceeded, InvalidArgument, OmniError, Unsupported
from omni_python.proto.messages import AbortMessage, CompleteMessage, Envelope, StreamMessage
from omni_python.proto.payload import Payload

_WHOLE_REQUEST = (InvalidArgument, Unsupported, DeadlineExceeded)
"""Errors that are about the request and not about what failed: no part of the answer is wanted then."""

_start = attrgetter("start")

log = logging.getLogger(__name__)


class Collector:
    """Chunks and results of one process come on one thread at a time, those of several on several; requests are ended
    on any. `start(request)` is called for each that is to start in place of one that has ended."""

    def __init__(
        self,
        spec: PipelineSpec,
        endpoint: Endpoint,
        members: Members,
        requests: Requests,
        answers: AnswerThreads,
        start: Callable[[Request], None],
    ) -> None:
        self._spec = spec
        self._endpoint = endpoint
        self._carrier = endpoint.carrier
        self._members = members
        self._registry = members.registry
        self._requests = requests
        self._answers = answers
        self._start = start
        self._lock = threading.Lock()
        """Held while a result, a failure or an end is noted, and a result that is not the last is put on its way: so
        that the last one, or an error, comes behind all others."""

    def take_chunk(self, message: StreamMessage) -> None:
        """A terminal stage has a part for the client."""
        request = self._requests.get(message.request_id)
        payload = self._payload(request, message.source, message.epoch, message.payload)
        if request is not None and payload is not None:
            if request.trace is not None:
                request.trace.work.arrived(message.source, stream=True)
            request.is_answered = True
            self._answers.put_chunk(request.id, request.sink, payload)

    def take_result(self, message: CompleteMessage) -> None:
        """A terminal stage is done, or a stage has failed."""
        request = self._requests.get(message.request_id)
        if message.error is not None:
            if request is not None:
                self.fail_part(request, {message.source}, message.error.exception())
            return
        payload = self._payload(request, message.source, message.epoch, message.payload)
        if request is None or payload is None:
            return
        if message.source not in request.terminals:
            self.end(request, RequestState.FAILED, OmniError(f"unexpected result from stage {message.source}"))
            return
        if request.trace is not None:
            request.trace.work.arrived(message.source, stream=False)
        since = time.monotonic() - request.admitted
        with self._lock:
            if message.source in request.failed or self._requests.get(request.id) is None:
                return
            for ago in message.timings:
                request.timings.setdefault(ago.stage, ago.shifted(since))
            request.completed.add(message.source)
            is_last = request.completed == request.terminals
            if not is_last:
                request.is_answered = True
                self._answers.put(request.id, partial(request.sink.result, message.source, payload))
        if is_last:
            self._complete(request, message.source, payload)
        else:
            self._end_if_complete(request)

    def _complete(self, request: Request, stage: str, payload: Payload) -> None:
        """The last of a request's results is there. Where it is all that there is to send, and little, it is sent on
        this thread, if no other request needs that meanwhile: nor this one, to receive the rest of its trace."""
        if not self._release(request, RequestState.COMPLETED):
            return
        timings = sorted(request.timings.values(), key=_start)
        answer = LastPart(request.sink, stage, payload, timings)
        is_whole = not request.is_answered and answer.is_small
        is_alone = not self._requests and request.trace is None
        if not (is_whole and is_alone and self._endpoint.direct.take(answer)):
            self._answers.put(request.id, answer)
        self._members.dismiss()

    def _end_if_complete(self, request: Request) -> None:
        if request.error is not None and request.completed | request.failed == request.terminals:
            self.end(request, RequestState.FAILED, request.error)

    def fail_part(self, request: Request, stages: Collection[str], error: OmniError) -> None:
        """Stages failed a request. Streamed answers that do not depend on them go on to their end, and the request
        fails after that; it fails at once where none is left, or where nothing can be sent before the end anyway. It
        does not fail where only results depend on them that have come already."""
        with self._lock:
            fed = self._spec.fed_by(stages) & request.terminals
            lost = fed - request.completed - request.failed
            left = request.left - lost
            concerns_all = isinstance(error, _WHOLE_REQUEST) or not (fed or request.failed)
            if not (lost or concerns_all):
                return
            ends_all = concerns_all or not request.stream
            if not ends_all:
                request.failed |= lost
                request.error = request.error or error
        if ends_all:
            self.end(request, RequestState.FAILED, error)
            return
        if left:
            log.warning("request %s goes on without %s: %s", request.id, ", ".join(sorted(lost)), error)
            self._members.tell_route(
                request.route, AbortMessage(self._endpoint.epoch, request.id, self._spec.unneeded(left))
            )
        self._end_if_complete(request)

    def _payload(self, request: Request | None, source: str, epoch: int, envelope: Envelope | None) -> Payload | None:
        """None where there is none, or none is wanted any more: nothing follows what a stage has failed with."""
        if request is None or envelope is None or source in request.failed:
            self._carrier.decline(epoch, envelope)
            return None
        try:
            return self._carrier.unpack(epoch, envelope)
        except OmniError as error:  # the process may have died, with the bytes
            self.fail_part(request, {source}, error)
            return None

    def end(self, request: Request, state: RequestState, error: OmniError) -> None:
        """End a request with an error; nothing happens where it has ended."""
        if self._release(request, state, late=isinstance(error, DeadlineExceeded)):
            self._members.tell_route(request.route, AbortMessage(self._endpoint.epoch, request.id))
            self._answers.put(request.id, lambda: request.sink.fail(error))
            self._members.dismiss()

    def _release(self, request: Request, state: RequestState, late: bool = False) -> bool:
        """Bring a request to its one final state, and let go what it held; False where it has one."""
        with self._lock:
            starting = self._requests.finish(request, state, late)
        if starting is None:
            return False
        self._registry.release(request.route)
        for following in starting:
            self._start(following)
        self._carrier.cleanup(request.id)
        return True
