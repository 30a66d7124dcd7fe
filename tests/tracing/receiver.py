"""A collector of OpenTelemetry's spans: takes OTLP/HTTP in protobuf, and keeps what it gets."""

from __future__ import annotations

import gzip
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.common.v1.common_pb2 import KeyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span


@dataclass
class Received:
    """`spans` by trace id, in hexadecimal digits; `services` the names that resources gave themselves."""

    url: str = ""
    spans: dict[str, list[Span]] = field(default_factory=dict)
    services: set[str] = field(default_factory=set)
    changed: threading.Condition = field(default_factory=threading.Condition)

    def wait(self, trace_id: str, timeout: float = 10.0) -> list[Span]:
        """The spans of a trace, once they are there."""
        with self.changed:
            assert self.changed.wait_for(lambda: trace_id in self.spans, timeout), f"{trace_id} did not come"
            return self.spans[trace_id]


def attributes(values: list[KeyValue]) -> dict[str, object]:
    """Plain values by key."""
    return {item.key: getattr(item.value, item.value.WhichOneof("value") or "string_value") for item in values}


@contextmanager
def receiving() -> Iterator[Received]:
    """Listens on loopback."""
    received = Received()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            data = self.rfile.read(int(self.headers["Content-Length"]))
            if self.headers.get("Content-Encoding") == "gzip":
                data = gzip.decompress(data)
            assert self.path == "/v1/traces" and self.headers["Content-Type"] == "application/x-protobuf"
            request = ExportTraceServiceRequest.FromString(data)
            with received.changed:
                for resource in request.resource_spans:
                    received.services.add(str(attributes(list(resource.resource.attributes))["service.name"]))
                    for scope in resource.scope_spans:
                        for span in scope.spans:
                            received.spans.setdefault(span.trace_id.hex(), []).append(span)
                received.changed.notify_all()
            reply = ExportTraceServiceResponse().SerializeToString()
            self.send_response(200)
            self.send_header("Content-Type", "application/x-protobuf")
            self.send_header("Content-Length", str(len(reply)))
            self.end_headers()
            self.wfile.write(reply)

        def log_message(self, format: str, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        received.url = f"http://127.0.0.1:{server.server_address[1]}/v1/traces"
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield received
        finally:
            server.shutdown()
            thread.join()
