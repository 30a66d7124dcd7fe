"""A traced request, as its orchestrator notes it and as it is put together with what the stages tell."""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from omni_python.pipeline.answer_parts import ResponseSink
from omni_python.pipeline.tracing.parts import DIGITS, TracePart, lanes_and_hops
from omni_python.proto.errors import Cancelled, OmniError
from omni_python.proto.messages import TraceMessage
from omni_python.proto.payload import Payload
from omni_python.proto.timing import StageTiming
from omni_python.proto.trace import CLIENT, ORCHESTRATOR, Trace
from omni_python.proto.trace_context import TraceWish
from omni_python.scheduling.work_trace import WorkTrace

PATIENCE = 1.0
"""Seconds after the end for which whoever wants the trace waits for stages that have not told yet. They tell as soon as
they are done: it is milliseconds, unless a process died."""


class RequestTrace:
    """Any thread. `entry_stage` is where the orchestrator submits; `host` that of its process."""

    def __init__(self, request_id: str, pipeline: str, entry_stage: str, host: str, wish: TraceWish) -> None:
        context = wish.context
        self.id = request_id
        self.trace_id = context.trace_id if context else secrets.token_hex(16)
        self.asked = bool(wish.asked)
        self.complete = threading.Event()
        """All stages that took part have told of it."""
        self.ended = 0.0
        """When its last response was made, in seconds of `time.monotonic()`; 0 before."""
        self.work = WorkTrace(ORCHESTRATOR)
        self._parent_id = context.parent_id if context else ""
        self._pipeline = pipeline
        self._entry_stage = entry_stage
        self._host = host
        self._time = time.time()
        self._state = "running"
        self._error = ""
        self._lock = threading.Lock()
        self._parts: list[TracePart] = []
        self._began = 0.0
        self.work.arrived(CLIENT, stream=False)

    def begins(self) -> None:
        """A thread takes the request, to submit it."""
        self._began = time.monotonic()

    def submits(self) -> None:
        """The request is now sent to the entry stage."""
        self.work.computed(self._began, time.monotonic(), 1)
        self.work.sent(self._entry_stage, stream=False)

    def add(self, message: TraceMessage) -> None:
        """A process has told of its part."""
        with self._lock:
            self._parts += [
                TracePart(message.process, message.replica, message.host, record) for record in message.stages
            ]
            told = {part.record.stage for part in self._parts}
            reached = {self._entry_stage, *(sent.target for part in self._parts for sent in part.record.sent)}
            if reached - {ORCHESTRATOR} <= told:
                self.complete.set()

    def end(self, state: str, error: OmniError | None = None) -> None:
        """The last response is made."""
        self.work.done(result=True)
        self._state, self._error = state, str(error or "")
        self.ended = time.monotonic()

    def settled(self) -> Trace:
        """The trace of a request that has ended; waits for stages that have not told yet, where that can be soon."""
        self.complete.wait(max(0.0, self.ended + PATIENCE - time.monotonic()))
        return self.trace()

    def trace(self) -> Trace:
        """What is known of a request that has ended."""
        with self._lock:
            parts = list(self._parts)
        own = self.work.record()
        parts.insert(0, TracePart(ORCHESTRATOR, 0, self._host, own))
        lanes, hops = lanes_and_hops(parts)
        return Trace(
            self.id,
            self.trace_id,
            self._parent_id,
            self._pipeline,
            self._time,
            round(own.end - own.start, DIGITS),
            self._state,
            self._error,
            self.complete.is_set(),
            lanes,
            hops,
        )


class TracedSink:
    """A request's way back to its client, with notes of what goes along it. `on_end` is called when the last response
    is made, and before it is sent: the client may then ask for the trace."""

    def __init__(
        self, inner: ResponseSink, trace: RequestTrace, stream: bool, on_end: Callable[[RequestTrace], None]
    ) -> None:
        self._inner = inner
        self._trace = trace
        self._stream = stream
        self._on_end = on_end

    def traced(self, trace_id: str) -> None:
        self._inner.traced(trace_id)

    def chunk(self, payload: Payload) -> None:
        with self._noted():
            self._inner.chunk(payload)

    def result(self, stage: str, payload: Payload) -> None:
        with self._noted():
            self._inner.result(stage, payload)

    def finish(self, timings: Sequence[StageTiming], trace: Trace | None = None) -> None:
        self._trace.work.sent(CLIENT, stream=False)
        self._trace.end("completed")
        self._on_end(self._trace)
        if self._trace.asked:
            self._inner.finish(timings, self._trace.settled())
        else:
            self._inner.finish(timings)

    def fail(self, error: OmniError) -> None:
        self._trace.work.sent(CLIENT, stream=False)
        self._trace.end("aborted" if isinstance(error, Cancelled) else "failed", error)
        self._on_end(self._trace)
        self._inner.fail(error)

    def is_cancelled(self) -> bool:
        return self._inner.is_cancelled()

    @contextmanager
    def _noted(self) -> Iterator[None]:
        if self._stream:
            self._trace.work.sent(CLIENT, stream=True)
        start = time.monotonic()
        yield
        self._trace.work.computed(start, time.monotonic(), 1)
