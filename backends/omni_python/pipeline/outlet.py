"""How the outputs of a process's stages leave it, or reach a neighbour inside it."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping

from omni_python.pipeline.endpoint import Endpoint
from omni_python.pipeline.membership import COORDINATOR, Membership
from omni_python.pipeline.observer import Observer
from omni_python.pipeline.routes import Routes
from omni_python.pipeline.stage import Stage
from omni_python.proto.errors import OmniError, Unavailable
from omni_python.proto.messages import CompleteMessage, DataReadyMessage, StreamMessage, WireError
from omni_python.proto.payload import Payload
from omni_python.proto.timing import StageTiming
from omni_python.proto.trace import CLIENT, ORCHESTRATOR

log = logging.getLogger(__name__)


class ProcessOutlet:
    """A `StageOutlet` for all stages of a process. Neighbours inside hand payloads over by reference; to others they go
    as the request's route says.

    A thread that sends chunks waits while the last ones are not yet on their way: a stage that makes them faster than
    they are read would else fill the way with chunks of one request, for all others to wait behind.
    """

    def __init__(
        self,
        stages: Mapping[str, Stage],
        endpoint: Endpoint,
        membership: Membership,
        observer: Observer,
        routes: Routes,
    ) -> None:
        self._stages = stages
        self._endpoint = endpoint
        self._carrier = endpoint.carrier
        self._membership = membership
        self._observer = observer
        self._edges = observer.edges
        self._routes = routes

    def began(self, stage: str, request_id: str) -> None:
        self._observer.timings.began(request_id, stage)

    def gave(self, stage: str, request_id: str) -> None:
        self._observer.timings.gave(request_id, stage)

    def finished(self, stage: str, request_id: str) -> None:
        self._observer.finished(stage, request_id)

    def timings(self, request_id: str) -> tuple[StageTiming, ...]:
        return self._observer.timings.told(request_id)

    def check_inputs(self, stage: str, request_id: str) -> None:
        self._observer.check_inputs(stage, request_id)

    def send_payload(self, source: str, target: str, request_id: str, payload: Payload, deadline: float) -> None:
        if local := self._stages.get(target):
            payload = self._observer.hand_over(source, target, request_id, payload, is_chunk=False)
            local.on_payload(request_id, source, payload, deadline)
            return
        self._observer.sends(source, target, request_id, stream=False)
        self._send_data(source, target, request_id, payload, deadline)

    def send_chunk(
        self, source: str, target: str, request_id: str, chunk_id: int, payload: Payload, deadline: float
    ) -> None:
        if local := self._stages.get(target):
            payload = self._observer.hand_over(source, target, request_id, payload, is_chunk=True)
            local.on_chunk(request_id, source, chunk_id, payload, deadline)
            return
        self._observer.sends(source, target, request_id, stream=True)
        self._send_data(source, target, request_id, payload, deadline, chunk_id)

    def send_stream_done(self, source: str, target: str, request_id: str, chunks: int, deadline: float) -> None:
        if local := self._stages.get(target):
            local.on_stream_done(request_id, source, chunks, deadline)
            return
        self._send_data(source, target, request_id, None, deadline, chunks, is_done=True)

    def send_to_client(self, source: str, request_id: str, payload: Payload) -> None:
        self._observer.sends(source, ORCHESTRATOR, request_id, stream=True)
        envelope = self._carrier.pack(payload, [self._membership.coordinator], request_id)
        self._endpoint.await_room(COORDINATOR)
        self._to_coordinator(StreamMessage(self._endpoint.epoch, request_id, source, envelope))

    def send_result(self, source: str, request_id: str, payload: Payload, timings: tuple[StageTiming, ...]) -> None:
        envelope = self._carrier.pack(payload, [self._membership.coordinator], request_id)
        self._to_coordinator(CompleteMessage(self._endpoint.epoch, request_id, source, envelope, timings=timings))

    def send_failure(self, source: str, request_id: str, error: BaseException) -> None:
        message = CompleteMessage(self._endpoint.epoch, request_id, source, error=WireError.of(error))
        try:
            self._endpoint.send(COORDINATOR, message)
        except OmniError as lost:
            log.warning("failure of request %s in stage %s could not be reported: %s", request_id, source, lost)

    def _to_coordinator(self, message: StreamMessage | CompleteMessage) -> None:
        try:
            self._endpoint.send(COORDINATOR, message)
        except OmniError:
            self._carrier.take_back(message.payload, [self._membership.coordinator])
            raise
        if message.payload is not None:
            self._edges.sent(message.source, CLIENT, message.payload, isinstance(message, StreamMessage))

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
        peer = self._membership.peer(target, route)
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
            self._observer.timings.told(request_id) if chunk_id < 0 else (),
            self._observer.order(request_id),
            traced=self._observer.is_traced(request_id),
        )
        try:
            if chunk_id >= 0:
                self._endpoint.await_room(peer.epoch)
            self._endpoint.send(peer.epoch, message)
        except OmniError as error:
            self._carrier.take_back(envelope, [peer.epoch])
            if isinstance(error, Unavailable):
                raise Unavailable(f"stage {target} is not there: {error}") from None
            raise
        if envelope is not None:
            self._edges.sent(source, target, envelope, chunk_id >= 0)

    def closed(self, request_id: str) -> None:
        self._observer.closed(request_id)
        self._routes.closed(request_id)
