"""Takes requests in, hands them to the entry stage, and brings what terminal stages make to the client."""

from __future__ import annotations

import enum
import itertools
import logging
import queue
import threading
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from omni_python.control.deaths import DeathWatch
from omni_python.control.directory import leave_directory, remove_leftovers
from omni_python.pipeline.endpoint import Endpoint
from omni_python.pipeline.registry import Registry
from omni_python.pipeline.stage_process import coordinator_address
from omni_python.proto.errors import Cancelled, DeadlineExceeded, OmniError, Unavailable
from omni_python.proto.messages import (
    AbortMessage,
    CompleteMessage,
    ControlMessage,
    Envelope,
    Peer,
    PeersMessage,
    RegisterMessage,
    StreamMessage,
    SubmitMessage,
    SubmitReply,
    decode_reply,
    encode_message,
)
from omni_python.proto.payload import Payload
from omni_python.proto.request import OmniRequest

CANCEL_POLL = 0.02
"""Seconds between looks at whether clients are still there (one look costs Triton about 30 us a request)."""

log = logging.getLogger(__name__)


class RequestState(enum.Enum):
    PENDING = "pending"  # admitted, not yet taken by the entry stage
    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"
    ABORTED = "aborted"


class ResponseSink(Protocol):
    """Where a request's answer goes: chunks and terminal stages' results as they come, then once `finish` or `fail`.

    All but `is_cancelled` are called on one thread, in order.
    """

    def chunk(self, payload: Payload) -> None: ...
    def result(self, stage: str, payload: Payload) -> None: ...
    def finish(self) -> None: ...
    def fail(self, error: OmniError) -> None: ...
    def is_cancelled(self) -> bool: ...


@dataclass(frozen=True)
class PipelineSpec:
    """What the coordinator needs to know of a pipeline."""

    name: str
    entry_stage: str
    entry_model: str
    """The Triton model that holds the entry stage."""
    terminals: tuple[str, ...]
    stages_by_process: Mapping[str, tuple[str, ...]]
    terminal_stages_fn: Callable[[OmniRequest], Collection[str] | None] | None = None

    def active_terminals(self, request: OmniRequest) -> frozenset[str]:
        chosen = self.terminal_stages_fn(request) if self.terminal_stages_fn else None
        if chosen is None:
            return frozenset(self.terminals)
        active = frozenset((chosen,) if isinstance(chosen, str) else chosen)
        if not active or not active <= frozenset(self.terminals):
            raise OmniError(f"terminal_stages_fn returned {sorted(active)}; it must choose from {list(self.terminals)}")
        return active


@dataclass(frozen=True)
class Limits:
    """Admission and time. `max_in_flight` requests at once; `deadline` seconds for each; `grace` seconds to wait for
    stages that have not registered yet."""

    max_in_flight: int = 256
    deadline: float = 600.0
    grace: float = 10.0
    submit_threads: int = 8
    sender_threads: int = 2


@dataclass(slots=True)
class _Request:
    id: str
    sink: ResponseSink
    terminals: frozenset[str]
    deadline: float
    payload: OmniRequest | None
    state: RequestState = RequestState.PENDING
    completed: set[str] = field(default_factory=set)


class Coordinator:
    """`bls(model, message) -> reply` submits to the entry stage's model; it blocks and is called on several threads."""

    def __init__(
        self,
        spec: PipelineSpec,
        directory: Path,
        pool_bytes: int,
        bls: Callable[[str, bytes], bytes],
        limits: Limits | None = None,
    ) -> None:
        self.spec = spec
        self.limits = limits or Limits()
        self.finished = dict.fromkeys((RequestState.COMPLETED, RequestState.FAILED, RequestState.ABORTED), 0)
        """Requests by final state."""
        self._bls = bls
        self._directory = directory
        self._endpoint = Endpoint(directory, self._on_message, pool_bytes, coordinator_address(directory, spec.name))
        self._registry = Registry(self._endpoint.epoch, spec.stages_by_process)
        self._deaths = DeathWatch()
        self._requests: dict[str, _Request] = {}
        self._lock = threading.Lock()
        self._numbers = itertools.count(1)
        self._to_submit: queue.SimpleQueue[_Request | None] = queue.SimpleQueue()
        self._to_send: list[queue.SimpleQueue[Callable[[], None] | None]] = [
            queue.SimpleQueue() for _ in range(self.limits.sender_threads)
        ]
        self._threads = [
            *(
                threading.Thread(target=self._submit_requests, name="omni-submit", daemon=True)
                for _ in range(self.limits.submit_threads)
            ),
            *(
                threading.Thread(target=self._send_answers, args=(q,), name="omni-send", daemon=True)
                for q in self._to_send
            ),
        ]
        self._watcher = threading.Thread(target=self._watch, name="omni-watch", daemon=True)

    def start(self) -> None:
        remove_leftovers(self._directory)
        self._endpoint.start()
        for thread in self._threads:
            thread.start()
        self._watcher.start()

    def stop(self) -> None:
        """Fail what is still running and stop all threads."""
        self._deaths.close()
        self._watcher.join()
        for request in list(self._requests.values()):
            self._end(request, RequestState.FAILED, Unavailable("the server is stopping"))
        for _ in range(self.limits.submit_threads):
            self._to_submit.put(None)
        for answers in self._to_send:
            answers.put(None)
        for thread in self._threads:
            thread.join()
        self._endpoint.stop()
        leave_directory(self._directory)

    def stats(self) -> dict[str, int]:
        """What is held now; all zero when no request is left."""
        return {"requests": len(self._requests), "relay_slots": self._endpoint.pool.slots_in_use}

    def missing_processes(self) -> list[str]:
        return self._registry.missing()

    def submit(self, request: OmniRequest, sink: ResponseSink, deadline: float | None = None) -> str:
        """Admit a request and return its id at once; everything else reaches `sink`.

        Raises `Unavailable` when too many are in flight.
        """
        seconds = self.limits.deadline if deadline is None else min(deadline, self.limits.deadline)
        terminals = self.spec.active_terminals(request)
        with self._lock:
            if len(self._requests) >= self.limits.max_in_flight:
                raise Unavailable(
                    f"{len(self._requests)} requests are in flight, which is this pipeline's limit; try again later"
                )
            request_id = f"{self._endpoint.epoch:x}-{next(self._numbers)}"
            record = _Request(request_id, sink, terminals, time.monotonic() + seconds, request)
            was_idle = not self._requests
            self._requests[request_id] = record
        if was_idle:
            self._deaths.wake()  # the watcher sleeps longer while there is nobody to watch for
        self._to_submit.put(record)
        return request_id

    def abort(self, request_id: str, error: OmniError | None = None) -> None:
        """End a request early, in every stage. Unknown and finished ones are left alone."""
        request = self._requests.get(request_id)
        if request is not None:
            self._end(request, RequestState.ABORTED, error or Cancelled("the request was cancelled"))

    # -- submit threads; each step is a call of its own, so that nothing of a request is held while waiting for the next

    def _submit_requests(self) -> None:
        while self._submit_next():
            pass

    def _submit_next(self) -> bool:
        request = self._to_submit.get()
        if request is None:
            return False
        try:
            self._submit(request)
        except Exception as error:
            if not isinstance(error, OmniError):
                log.error("request %s could not be submitted", request.id, exc_info=error)
            self._end(request, RequestState.FAILED, OmniError.of(error))
        return True

    def _submit(self, request: _Request) -> None:
        if not self._registry.wait_complete(self.limits.grace):
            missing = ", ".join(self._registry.missing()) or "none, but not all have been told of the others"
            raise Unavailable(f"processes of pipeline {self.spec.name} that are not running: {missing}")
        payload, request.payload = request.payload, None
        if payload is None or request.state is not RequestState.PENDING:
            return
        envelope = self._endpoint.pack(payload)
        message = SubmitMessage(self._endpoint.epoch, request.id, self.spec.entry_stage, envelope)
        try:
            reply: SubmitReply = decode_reply(self._bls(self.spec.entry_model, encode_message(message)))
        except Exception as error:
            self._endpoint.take_back(envelope)
            raise Unavailable(f"stage {self.spec.entry_stage} did not take the request: {error}") from error
        if reply.error is not None:
            raise reply.error.exception()
        with self._lock:
            if request.state is RequestState.PENDING:
                request.state = RequestState.RUNNING
            ended_early = request.state in (RequestState.FAILED, RequestState.ABORTED)
        if ended_early:  # meanwhile, and the news may have been at the stage before the request was
            self._broadcast(AbortMessage(self._endpoint.epoch, request.id))

    # -- receiving thread

    def _on_message(self, message: ControlMessage) -> None:
        match message:
            case StreamMessage():
                self._on_stream(message)
            case CompleteMessage():
                self._on_complete(message)
            case RegisterMessage():
                self._on_register(message)
            case _:
                log.warning("the coordinator got a %s", type(message).__name__)

    def _on_stream(self, message: StreamMessage) -> None:
        request = self._requests.get(message.request_id)
        payload = self._payload(request, message.epoch, message.payload)
        if request is not None and payload is not None:
            self._queue(request, lambda: request.sink.chunk(payload))

    def _on_complete(self, message: CompleteMessage) -> None:
        request = self._requests.get(message.request_id)
        if message.error is not None:
            if request is not None:
                self._end(request, RequestState.FAILED, message.error.exception())
            return
        payload = self._payload(request, message.epoch, message.payload)
        if request is None or payload is None:
            return
        if message.source not in request.terminals:
            self._end(request, RequestState.FAILED, OmniError(f"unexpected result from stage {message.source}"))
            return
        request.completed.add(message.source)
        self._queue(request, lambda: request.sink.result(message.source, payload))
        if request.completed == request.terminals:
            self._end(request, RequestState.COMPLETED)

    def _payload(self, request: _Request | None, epoch: int, envelope: Envelope | None) -> Payload | None:
        if request is None or envelope is None:
            self._endpoint.decline(epoch, envelope)
            return None
        try:
            return self._endpoint.unpack(epoch, envelope)
        except OmniError as error:
            self._end(request, RequestState.FAILED, error)
            return None

    def _on_register(self, message: RegisterMessage) -> None:
        try:
            peer, replaced = self._registry.register(message)
        except ValueError as error:
            log.warning("refused a registration: %s", error)
            return
        if replaced is not None:
            self._lose(replaced, "was restarted")
        if peer is not None:
            self._endpoint.connect(peer.epoch, peer.address)
            self._deaths.watch(peer.epoch, peer.pid)
            self._broadcast(self._view())
        elif message.view != (self._endpoint.epoch, self._registry.version):
            self._tell(message.epoch, self._view())

    # -- watching thread

    def _watch(self) -> None:
        next_check = 0.0
        while not self._deaths.closed:
            wait = max(0.0, next_check - time.monotonic()) if self._requests else 1.0
            for epoch in self._deaths.wait(wait):
                peer = self._registry.remove(epoch)
                if peer is not None:
                    self._lose(peer, "died")
                    self._broadcast(self._view())
            if time.monotonic() >= next_check:
                next_check = time.monotonic() + CANCEL_POLL
                self._check_requests()

    def _check_requests(self) -> None:
        now = time.monotonic()
        for request in list(self._requests.values()):
            if request.sink.is_cancelled():
                self._end(request, RequestState.ABORTED, Cancelled("the client cancelled the request"))
            elif now > request.deadline:
                self._end(request, RequestState.FAILED, DeadlineExceeded("the request's time is up"))

    def _lose(self, peer: Peer, what: str) -> None:
        """A stage process is gone, and with it whatever part of the running requests it held."""
        stages = ", ".join(peer.stages)
        log.error("process %s (%s) %s", peer.process, stages, what)
        self._deaths.forget(peer.epoch)
        self._endpoint.forget(peer.epoch)
        for request in list(self._requests.values()):
            if request.state is RequestState.RUNNING:
                self._end(request, RequestState.FAILED, Unavailable(f"process {peer.process} (stages {stages}) {what}"))

    # -- the end of a request

    def _end(self, request: _Request, state: RequestState, error: OmniError | None = None) -> None:
        """Bring a request to its one final state; later calls change nothing."""
        with self._lock:
            if self._requests.pop(request.id, None) is None:
                return
            request.state = state
            self.finished[state] += 1
        if error is None:
            self._queue(request, request.sink.finish)
            return
        self._broadcast(AbortMessage(self._endpoint.epoch, request.id))
        self._queue(request, lambda: request.sink.fail(error))

    def _queue(self, request: _Request, send: Callable[[], None]) -> None:
        """Sending can block, so it has threads of its own; a request stays with one, which keeps its order."""
        self._to_send[hash(request.id) % len(self._to_send)].put(send)

    def _send_answers(self, answers: queue.SimpleQueue[Callable[[], None] | None]) -> None:
        while self._send_next(answers):
            pass

    @staticmethod
    def _send_next(answers: queue.SimpleQueue[Callable[[], None] | None]) -> bool:
        send = answers.get()
        if send is None:
            return False
        try:
            send()
        except Exception:
            log.exception("a response could not be sent")
        return True

    # -- messages to stage processes

    def _view(self) -> PeersMessage:
        endpoint = self._endpoint
        return PeersMessage(
            endpoint.epoch, self._registry.version, endpoint.pid, endpoint.address, self._registry.peers()
        )

    def _broadcast(self, message: AbortMessage | PeersMessage) -> None:
        for peer in self._registry.peers():
            self._tell(peer.epoch, message)

    def _tell(self, epoch: int, message: AbortMessage | PeersMessage) -> None:
        try:
            self._endpoint.send(epoch, message)
        except OmniError as error:
            log.warning("%s was not delivered: %s", type(message).__name__, error)
