"""Which requests an orchestrator traces, and the traces of the last that have ended."""

from __future__ import annotations

import random
import threading
from collections import OrderedDict
from typing import Protocol

from omni_python.pipeline.tracing.request import RequestTrace
from omni_python.proto.errors import NotFound
from omni_python.proto.messages import TraceMessage
from omni_python.proto.trace import Trace
from omni_python.proto.trace_context import TraceWish

NAMED = 5
"""Ids that the error for an unknown one names."""


class TraceExporter(Protocol):
    def put(self, trace: RequestTrace) -> None:
        """A traced request has ended; must return at once."""

    def close(self) -> None: ...


class TraceStore:
    """Thread-safe. Traces a request that asks for it, or whose caller's context is sampled; of those that say nothing,
    the share `sample`. The traces of the last `keep` that have ended stay; all are given to `exporter`."""

    def __init__(self, sample: float = 0.0, keep: int = 64, exporter: TraceExporter | None = None) -> None:
        self._sample = sample
        self._keep = keep
        self._exporter = exporter
        self._running: dict[str, RequestTrace] = {}
        self._ended: OrderedDict[str, RequestTrace] = OrderedDict()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        """Traces of requests that have not ended."""
        return len(self._running)

    def wants(self, wish: TraceWish | None) -> bool:
        """Whether a request is to be traced."""
        if wish is not None and wish.asked is not None:
            return wish.asked
        if wish is not None and wish.context is not None:
            return wish.context.sampled
        return self._sample > 0 and random.random() < self._sample

    def begin(self, trace: RequestTrace) -> None:
        """A traced request was admitted; `end` is called when its last response is made."""
        with self._lock:
            self._running[trace.id] = trace

    def add(self, message: TraceMessage) -> None:
        """A process tells of its part, be the request over or not."""
        with self._lock:
            trace = self._running.get(message.request_id) or self._ended.get(message.request_id)
        if trace is not None:
            trace.add(message)

    def find(self, name: str) -> Trace:
        """The trace of a request that has ended, by its id or its W3C trace id (the newest of several); "" stands for
        the newest of all. Waits for its parts if it ended just now. Raises `NotFound`."""
        with self._lock:
            ended = list(reversed(self._ended.values()))
        for trace in ended:
            if name in ("", trace.id, trace.trace_id):
                return trace.settled()
        if not ended:
            raise NotFound("no request that was traced has ended yet; ask one with the parameter `trace`")
        newest = ", ".join(trace.id for trace in ended[:NAMED])
        raise NotFound(f"there is no trace {name!r}; of {len(ended)} traces the newest are {newest}")

    def end(self, trace: RequestTrace) -> None:
        """The request is over."""
        with self._lock:
            self._running.pop(trace.id, None)
            self._ended[trace.id] = trace
            while len(self._ended) > self._keep:
                self._ended.popitem(last=False)
        if self._exporter is not None:
            self._exporter.put(trace)

    def close(self) -> None:
        """Nothing more will come."""
        if self._exporter is not None:
            self._exporter.close()
