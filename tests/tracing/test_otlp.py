"""A collector that is slow or gone costs traces, never the server's time."""

from __future__ import annotations

import socket
import time

import pytest

from omni_python.pipeline.tracing import otlp
from omni_python.pipeline.tracing.otlp import MAX_WAITING, STOP_TIMEOUT, OtlpExporter
from omni_python.pipeline.tracing.request import RequestTrace
from omni_python.proto.trace_context import TraceContext, TraceWish
from tests.tracing.receiver import receiving


def ended(number: int) -> RequestTrace:
    """The trace of a request that failed at once."""
    wish = TraceWish(None, TraceContext(f"{number + 1:032x}", "00f067aa0ba902b7", sampled=True))
    trace = RequestTrace(f"7-{number}", "demo", "a", "here", wish)
    trace.end("failed")
    trace.complete.set()
    return trace


def test_all_that_wait_are_sent_before_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(otlp, "STOP_TIMEOUT", 30.0)
    with receiving() as received:
        exporter = OtlpExporter(received.url, "demo")
        for number in range(20):
            exporter.put(ended(number))
        exporter.close()
        assert received.spans.keys() == {f"{number + 1:032x}" for number in range(20)} and exporter.lost == 0


def test_a_collector_that_never_answers_holds_up_nobody() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        exporter = OtlpExporter(f"http://127.0.0.1:{silent.getsockname()[1]}/v1/traces", "demo")
        start = time.monotonic()
        for number in range(MAX_WAITING + 100):
            exporter.put(ended(number))
        assert exporter.lost >= 99, "one is being sent, and the queue is full"
        exporter.close()
        assert time.monotonic() - start < STOP_TIMEOUT + 5  # not the 10 s that OpenTelemetry is patient for
