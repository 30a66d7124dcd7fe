"""The requests that a coordinator works on, and the states that they pass through."""

from __future__ import annotations

import enum
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from omni_python.pipeline.admission import Admission
from omni_python.pipeline.answer_parts import ResponseSink
from omni_python.pipeline.spec import Limits
from omni_python.pipeline.tracing.request import RequestTrace
from omni_python.proto.errors import OmniError
from omni_python.proto.messages import RecordOrder, Route
from omni_python.proto.request import OmniRequest
from omni_python.proto.timing import StageTiming


class RequestState(enum.Enum):
    PENDING = "pending"  # admitted, not yet on its way
    RUNNING = "running"  # on its way to the entry stage, or further
    COMPLETED = "completed"
    FAILED = "failed"
    ABORTED = "aborted"


@dataclass(slots=True)
class Request:
    """`terminals` are the stages that are to answer it, `processes` those that it may touch; `admitted` and `deadline`
    are seconds of `time.monotonic()`."""

    id: str
    sink: ResponseSink
    terminals: frozenset[str]
    processes: frozenset[str]
    admitted: float
    deadline: float
    payload: OmniRequest | None
    stream: bool
    record: RecordOrder | None
    cancel_key: str = ""
    state: RequestState = RequestState.PENDING
    completed: set[str] = field(default_factory=set)
    failed: set[str] = field(default_factory=set)
    route: Route = ()  # the processes that it was given to
    error: OmniError | None = None  # what the failed terminals failed with
    timings: dict[str, StageTiming] = field(default_factory=dict)  # by stage, relative to the admission
    trace: RequestTrace | None = None
    is_answered: bool = False  # in part, by other threads, behind which the rest has to wait
    grace_ends: float = 0.0  # until when it waits for processes, where it has to

    @property
    def left(self) -> frozenset[str]:
        """The terminal stages that have neither completed nor failed."""
        return self.terminals - self.completed - self.failed


class Requests:
    """Those that have not ended. Thread-safe.

    `begin(trace)` is called for each that is traced, before anything can end it; `wake()` when one comes while the
    watcher dozes; `withdraw(request)` for each that ends before it was given to processes, and must take no lock.
    """

    def __init__(
        self,
        limits: Limits,
        begin: Callable[[RequestTrace], None],
        wake: Callable[[], None],
        withdraw: Callable[[Request], None],
    ) -> None:
        self.finished = dict.fromkeys((RequestState.COMPLETED, RequestState.FAILED, RequestState.ABORTED), 0)
        """Requests by final state."""
        self.closed = False
        """Whether no more are admitted."""
        self._requests: dict[str, Request] = {}
        self._admission: Admission[Request] = Admission(limits.max_in_flight, limits.max_queued)
        self._begin = begin
        self._wake = wake
        self._withdraw = withdraw
        self._is_watcher_dozing = False
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._requests)

    def __iter__(self) -> Iterator[Request]:
        return iter(list(self._requests.values()))

    def get(self, request_id: str) -> Request | None:
        return self._requests.get(request_id)

    @property
    def queued(self) -> int:
        """How many wait for their turn."""
        return self._admission.waiting

    def check_room(self) -> bool:
        """Whether one more could start at once. Raises `Unavailable` where it would be refused."""
        self._admission.check()
        return not self._admission.is_full

    def close(self, why: str) -> None:
        """Admit nothing more."""
        with self._lock:
            self._admission.close(why)
            self.closed = True

    def admit(self, request: Request, seconds: float) -> bool:
        """Whether a request, which has so many seconds, is to start now; `finish` of another one will return it else.
        Raises `Unavailable`."""
        with self._lock:
            starts = self._admission.admit(request.id, request, seconds)
            self._requests[request.id] = request
            was_dozing, self._is_watcher_dozing = self._is_watcher_dozing, False
            if request.trace is not None:
                self._begin(request.trace)
        if was_dozing:
            self._wake()
        return starts

    def doze(self, wanted: bool) -> bool:
        """Whether the watcher, if it wants to, may sleep until `wake` is called."""
        with self._lock:
            self._is_watcher_dozing = wanted and not self._requests
            return self._is_watcher_dozing

    def assign(self, request: Request, route: Route) -> OmniRequest | None:
        """Let these replicas serve a request, and take its payload; None if it is over already."""
        with self._lock:
            payload, request.payload = request.payload, None
            if request.state is not RequestState.PENDING or payload is None:
                return None
            request.route = route
            request.state = RequestState.RUNNING  # what ends it from now on tells these processes, too
            return payload

    def finish(self, request: Request, state: RequestState, late: bool = False) -> Sequence[Request] | None:
        """Bring a request to its one final state, `late` for its deadline: those that are to start in its place, or
        None where it has its final state already."""
        with self._lock:
            if self._requests.pop(request.id, None) is None:
                return None
            request.state = state
            self.finished[state] += 1
            if request.payload is not None:  # which may be large, and whoever waits with it may wait for long yet
                request.payload = None
                self._withdraw(request)
            return self._admission.release(request.id, state is RequestState.COMPLETED, late)
