"""A collector of OpenTelemetry traces over OTLP/HTTP, for tests."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest


@dataclass(frozen=True)
class Span:
    """As it came; times are Unix seconds."""

    service: str
    name: str
    trace_id: str
    span_id: str
    parent_id: str
    kind: int
    start: float
    end: float
    attributes: dict[str, Any]
    events: dict[str, float]
    failed: bool


class Collector:
    """Use as a context. spans and bodies: all that came so far."""

    def __init__(self) -> None:
        self.spans: list[Span] = []
        self.bodies = b""
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                assert self.path == "/v1/traces"
                collector._take(body)
                self.send_response(200)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever)

    def __enter__(self) -> Collector:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def named(self, name: str, **attributes: str) -> list[Span]:
        """Spans of this name; attributes with _ for the dots of their names."""
        wanted = {key.replace("_", "."): value for key, value in attributes.items()}
        return [
            span for span in self.spans if span.name == name and wanted.items() <= span.attributes.items()
        ]

    def _take(self, body: bytes) -> None:
        self.bodies += body
        for of_resource in ExportTraceServiceRequest.FromString(body).resource_spans:
            service = _attributes(of_resource.resource.attributes)["service.name"]
            for of_scope in of_resource.scope_spans:
                self.spans += [_span(service, span) for span in of_scope.spans]


def _span(service: str, span: Any) -> Span:
    return Span(
        service=service,
        name=span.name,
        trace_id=span.trace_id.hex(),
        span_id=span.span_id.hex(),
        parent_id=span.parent_span_id.hex(),
        kind=span.kind,
        start=span.start_time_unix_nano / 1e9,
        end=span.end_time_unix_nano / 1e9,
        attributes=_attributes(span.attributes),
        events={event.name: event.time_unix_nano / 1e9 for event in span.events},
        failed=span.status.code == span.status.STATUS_CODE_ERROR,
    )


def _attributes(pairs: Any) -> dict[str, Any]:
    return {pair.key: _value(pair.value) for pair in pairs}


def _value(value: Any) -> Any:
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [_value(each) for each in value.array_value.values]
    return getattr(value, kind)
