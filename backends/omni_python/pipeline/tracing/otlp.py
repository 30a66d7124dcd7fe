"""Sends traces to an OpenTelemetry collector, over OTLP/HTTP.

OpenTelemetry's own variables say what a configuration has no field for: OTEL_EXPORTER_OTLP_HEADERS, _CERTIFICATE and
so on, and OTEL_RESOURCE_ATTRIBUTES and OTEL_SERVICE_NAME for what the spans say of the server.
"""

from __future__ import annotations

import logging
import queue
import secrets
import threading
from collections.abc import Iterator

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import SERVICE_NAME, OTELResourceDetector, Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExportResult
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext, SpanKind, TraceFlags
from opentelemetry.trace.status import Status, StatusCode

from omni_python import __version__
from omni_python.pipeline.tracing.request import RequestTrace
from omni_python.proto.trace import ORCHESTRATOR, Trace

MAX_WAITING = 256
"""Traces that wait to be sent; beyond, they are not sent."""

STOP_TIMEOUT = 2.0

Attributes = dict[str, str | int | float | bool]

_SCOPE = InstrumentationScope("omni_python", __version__)

log = logging.getLogger(__name__)


class OtlpExporter:
    """One thread sends what `put` gets. Where the collector does not keep up, traces are lost, and nothing waits."""

    def __init__(self, endpoint: str, pipeline: str) -> None:
        self.lost = 0
        """Traces that could not be sent."""
        self._exporter = OTLPSpanExporter(endpoint)
        # The environment's word counts for more than ours.
        self._resource = Resource({SERVICE_NAME: pipeline}).merge(OTELResourceDetector().detect())
        self._waiting: queue.Queue[RequestTrace | None] = queue.Queue(MAX_WAITING)
        self._thread = threading.Thread(target=self._run, name="omni-otlp", daemon=True)
        self._thread.start()

    def put(self, trace: RequestTrace) -> None:
        """Send the trace of a request that has ended; returns at once."""
        try:
            self._waiting.put_nowait(trace)
        except queue.Full:
            self._lose(1, "the collector does not keep up")

    def close(self) -> None:
        """Send what waits, as far as that is quick."""
        try:
            self._waiting.put_nowait(None)
            self._thread.join(STOP_TIMEOUT)
        except queue.Full:
            pass
        self._exporter.shutdown()

    def _run(self) -> None:
        while (trace := self._waiting.get()) is not None:
            try:
                result = self._exporter.export(list(spans(trace.settled(), self._resource)))
                if result is not SpanExportResult.SUCCESS:
                    self._lose(1, "the collector did not take it")
            except Exception as error:
                self._lose(1, f"{type(error).__name__}: {error}")

    def _lose(self, count: int, why: str) -> None:
        if not self.lost:
            log.warning("a trace could not be sent, others may follow: %s", why)
        self.lost += count


def spans(trace: Trace, resource: Resource) -> Iterator[ReadableSpan]:
    """The trace as OpenTelemetry's spans: the request with the orchestrator's own work, below it each stage with its
    spans, and the hops."""
    maker = _Spans(trace, resource)
    root = maker.context()
    parent = None
    if trace.parent_id:
        parent = SpanContext(int(trace.trace_id, 16), int(trace.parent_id, 16), True, TraceFlags(TraceFlags.SAMPLED))
    status = Status(StatusCode.OK) if trace.state == "completed" else Status(StatusCode.ERROR, trace.error)
    about: Attributes = {"omni.request_id": trace.id, "omni.state": trace.state, "omni.trace_complete": trace.complete}
    yield maker.span(trace.pipeline, 0.0, trace.seconds, about, root, parent, SpanKind.SERVER, status)
    for lane in trace.lanes:
        context = root
        if lane.stage != ORCHESTRATOR:
            context = maker.context()
            about = {"omni.process": lane.process, "omni.replica": lane.replica, "omni.host": lane.host}
            if lane.first is not None:
                about["omni.first_output_seconds"] = lane.first
            yield maker.span(lane.stage, lane.start, lane.end, about, context, root)
        for span in lane.spans:
            work: Attributes = {"omni.steps": span.steps, "omni.busy_seconds": span.busy, "omni.batch": span.batch}
            name = f"{lane.stage} {span.kind}"
            yield maker.span(
                name, span.start, span.end, work if span.kind == "compute" else {}, maker.context(), context
            )
    for hop in trace.hops:
        end = hop.last_received if hop.last_received is not None else hop.last_sent
        if hop.sent is None or hop.received is None or end is None:
            continue
        about = {"omni.source": hop.source, "omni.target": hop.target, "omni.payloads": hop.count}
        about["omni.first_received_seconds"] = hop.received
        kind = "chunks" if hop.stream else "result"
        name = f"{hop.source} to {hop.target} {kind}"
        yield maker.span(name, hop.sent, end, about, maker.context(), root)


class _Spans:
    def __init__(self, trace: Trace, resource: Resource) -> None:
        self._trace_id = int(trace.trace_id, 16)
        self._start = trace.time
        self._resource = resource

    def context(self) -> SpanContext:
        """A new span's."""
        span_id = secrets.randbits(63) + 1
        return SpanContext(self._trace_id, span_id, False, TraceFlags(TraceFlags.SAMPLED))

    def span(
        self,
        name: str,
        start: float,
        end: float,
        attributes: Attributes,
        context: SpanContext,
        parent: SpanContext | None,
        kind: SpanKind = SpanKind.INTERNAL,
        status: Status | None = None,
    ) -> ReadableSpan:
        """Seconds since the request was admitted."""
        return ReadableSpan(
            name,
            context=context,
            parent=parent,
            resource=self._resource,
            attributes=attributes,
            kind=kind,
            status=status or Status(StatusCode.UNSET),
            start_time=self._nanoseconds(start),
            end_time=self._nanoseconds(end),
            instrumentation_scope=_SCOPE,
        )

    def _nanoseconds(self, seconds: float) -> int:
        return int((self._start + seconds) * 1e9)
