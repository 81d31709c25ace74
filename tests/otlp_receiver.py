"""A receiver of OTLP over HTTP: what an OpenTelemetry collector would have got, as the protocol's own messages."""

import gzip
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from tests.loopback import http_on_a_thread


def facts(span: Span) -> dict[str, object]:
    """Return the attributes of a span."""
    return {item.key: getattr(item.value, item.value.WhichOneof("value") or "string_value") for item in span.attributes}


@dataclass
class OtlpReceiver:
    """``status`` is what it answers; it keeps what it took with 200."""

    port: int = 0
    status: int = 200
    spans: list[Span] = field(default_factory=list)
    metrics: list[ExportMetricsServiceRequest] = field(default_factory=list)
    services: set[str] = field(default_factory=set)
    refused: int = 0

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def by_operation(self) -> Counter[str]:
        return Counter(str(facts(span)["gen_ai.operation.name"]) for span in self.spans)

    def of(self, operation: str) -> list[Span]:
        return [span for span in self.spans if facts(span)["gen_ai.operation.name"] == operation]

    def roots(self) -> list[Span]:
        """Return the spans whose parents are not here, as one tree has one."""
        ids = {span.span_id for span in self.spans}
        return [span for span in self.spans if span.parent_span_id not in ids]

    def take(self, path: str, body: bytes) -> int:
        if self.status != 200:
            self.refused += 1
            return self.status
        if path == "/v1/traces":
            told = ExportTraceServiceRequest.FromString(body)
            for resource in told.resource_spans:
                self.services |= {a.value.string_value for a in resource.resource.attributes if a.key == "service.name"}
                self.spans += [span for scope in resource.scope_spans for span in scope.spans]
        elif path == "/v1/metrics":
            self.metrics.append(ExportMetricsServiceRequest.FromString(body))
        else:
            return 404
        return 200


@contextmanager
def otlp_receiver(port: int = 0) -> Iterator[OtlpReceiver]:
    """Run a receiver on a loopback port."""
    receiver = OtlpReceiver()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if self.headers.get("Content-Encoding") == "gzip":
                body = gzip.decompress(body)
            self.send_response(receiver.take(self.path, body))
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            """Say nothing."""

    with http_on_a_thread(Handler, port) as receiver.port:
        yield receiver
