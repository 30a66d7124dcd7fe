"""Notes what one stage does with one traced request."""

from __future__ import annotations

import threading
import time

from omni_python.proto.trace import Passage, Span, StageRecord

JOINED = 1e-3
"""Seconds between two steps of computing up to which they are one span; more where a stage would have too many."""

MAX_SPANS = 256
"""Of one stage and request."""

BRIEF = 2e-4
"""Seconds that taking an input may last without being a step of its own: it is put aside, and waits on."""


class WorkTrace:
    """Times are seconds of `time.monotonic()`. Any thread; nothing is ever outside a span between the first input and
    the end: what is before a step of computing is waiting up to the last input, and queueing from there."""

    def __init__(self, stage: str) -> None:
        self.stage = stage
        self._lock = threading.Lock()
        self._start = 0.0
        self._first = 0.0
        self._end = 0.0
        self._mark = 0.0  # until here the spans go
        self._input = 0.0  # when the last input came
        self._since = 0.0  # when the step that goes on began
        self._joined = JOINED
        self._spans: list[Span] = []
        self._sent: dict[tuple[str, str, bool], Passage] = {}
        self._received: dict[tuple[str, str, bool], Passage] = {}

    def arrived(self, source: str, stream: bool) -> None:
        """An input came."""
        with self._lock:
            now = time.monotonic()
            if not self._start:
                self._start = self._mark = now
            self._input = now
            _pass(self._received, source, self.stage, stream, now)

    def sent(self, target: str, stream: bool) -> None:
        """An output is about to be sent."""
        with self._lock:
            now = time.monotonic()
            self._first = self._first or now
            _pass(self._sent, self.stage, target, stream, now)

    def begin(self) -> None:
        """A step begins, whose outputs may go on their way before `end`."""
        with self._lock:
            self._since = time.monotonic()

    def end(self) -> None:
        """The step that began is over."""
        with self._lock:
            since, self._since = self._since, 0.0
            now = time.monotonic()
            if since and now - since >= BRIEF:
                self._compute(since, now, 1)

    def computed(self, start: float, end: float, batch: int) -> None:
        """A step of `batch` requests, this one among them, is over."""
        with self._lock:
            self._compute(start, end, batch)

    def done(self, result: bool = False) -> None:
        """The stage is done with the request, first of all if it has its `result`. Of a scheduler that does not tell
        when it computes, that is from the last input on."""
        with self._lock:
            if self._end:
                return
            now = time.monotonic()
            computed = any(span.kind == "compute" for span in self._spans)
            if self._since and (now - self._since >= BRIEF or not computed):
                self._compute(self._since, now, 1)
            elif result and not computed:
                self._compute(max(self._input, self._mark), now, 1)
            self._idle(now)
            self._end = now

    def record(self) -> StageRecord:
        """All that was noted of a stage that is done."""
        with self._lock:
            sent, received = tuple(self._sent.values()), tuple(self._received.values())
            return StageRecord(self.stage, self._start, self._first, self._end, tuple(self._spans), sent, received)

    def _compute(self, start: float, end: float, batch: int) -> None:
        if self._end:
            return
        step = Span("compute", max(start, self._mark), end, end - start, 1, batch)
        last = self._spans[-1] if self._spans else None
        if last is not None and last.kind == "compute" and step.start - last.end <= self._joined:
            self._spans[-1] = _joined(last, step)
        else:
            self._idle(step.start)
            self._spans.append(step)
            self._bound()
        self._mark = end

    def _idle(self, until: float) -> None:
        """Account for the time from the mark on, in which nothing was computed."""
        waited = min(max(self._input, self._mark), until)
        if waited > self._mark:
            self._spans.append(Span("wait", self._mark, waited))
        if until > waited:
            self._spans.append(Span("queue", waited, until))
        self._mark = until

    def _bound(self) -> None:
        while len(self._spans) > MAX_SPANS:
            self._joined *= 2
            spans: list[Span] = []
            last = -1  # the place of the last step
            for span in self._spans:
                if span.kind == "compute":
                    if last >= 0 and span.start - spans[last].end <= self._joined:
                        del spans[last + 1 :]
                        spans[last] = _joined(spans[last], span)
                        continue
                    last = len(spans)
                spans.append(span)
            self._spans = spans


def _joined(one: Span, next: Span) -> Span:
    return Span(
        "compute", one.start, next.end, one.busy + next.busy, one.steps + next.steps, max(one.batch, next.batch)
    )


def _pass(passages: dict[tuple[str, str, bool], Passage], source: str, target: str, stream: bool, now: float) -> None:
    key = (source, target, stream)
    known = passages.get(key)
    first, count = (now, 0) if known is None else (known.first, known.count)
    passages[key] = Passage(source, target, stream, first, now, count + 1)
