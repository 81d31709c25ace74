"""The collector behind the standard OTEL_* variables: spans over OTLP. The only module that imports OpenTelemetry.

Where to send, with which headers, certificates, compression and time limit, which traces are sampled and what describes
this service is read from the environment by the OpenTelemetry SDK itself.
"""

from collections.abc import Mapping, Sequence
from typing import Final

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import SERVICE_NAME, SERVICE_VERSION, Resource
from opentelemetry.sdk.trace import Event, ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SpanExportResult
from opentelemetry.sdk.trace.sampling import Decision
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import (
    Link,
    NonRecordingSpan,
    SpanContext,
    SpanKind,
    Status,
    StatusCode,
    TraceFlags,
    set_span_in_context,
)

from soong.orchestrator.telemetry.spans import Span, TraceOrigin

NANO: Final = 1000
_KINDS: Final[Mapping[str, SpanKind]] = {"internal": SpanKind.INTERNAL, "client": SpanKind.CLIENT}
_SAMPLED: Final = TraceFlags(TraceFlags.SAMPLED)


def service(version: str) -> Resource:
    """Return what describes this service: as OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES say, else ``soong``."""
    named = Resource.create({SERVICE_VERSION: version})
    is_unknown = str(named.attributes.get(SERVICE_NAME, "")).startswith("unknown_service")
    return named.merge(Resource({SERVICE_NAME: "soong"})) if is_unknown else named


class OtlpCollector:
    """Implements :class:`soong.orchestrator.telemetry.span_consumer.Collector`."""

    def __init__(self, version: str) -> None:
        self._resource = service(version)
        self._scope = InstrumentationScope("soong", version)
        self._sampler = TracerProvider(resource=self._resource, shutdown_on_exit=False).sampler
        self._exporter = OTLPSpanExporter()

    def is_sampled(self, origin: TraceOrigin) -> bool:
        context = None
        if origin.parent_id:
            flags = _SAMPLED if origin.is_sampled else TraceFlags(TraceFlags.DEFAULT)
            parent = SpanContext(origin.trace_id, origin.parent_id, is_remote=True, trace_flags=flags)
            context = set_span_in_context(NonRecordingSpan(parent))
        asked = self._sampler.should_sample(context, origin.trace_id, "invoke_workflow")
        return asked.decision is Decision.RECORD_AND_SAMPLE

    def send(self, spans: Sequence[Span]) -> bool:
        return self._exporter.export([self._readable(span) for span in spans]) is SpanExportResult.SUCCESS

    def close(self) -> None:
        """End a sending that waits to be tried again."""
        self._exporter.shutdown()  # type: ignore[no-untyped-call]

    def _readable(self, span: Span) -> ReadableSpan:
        links = [Link(_context(span.trace_id, linked)) for linked in span.links]
        events = [Event(event.name, event.attributes, event.time_us * NANO) for event in span.events]
        status = Status(StatusCode.ERROR, span.message or span.error) if span.error else Status(StatusCode.UNSET)
        return ReadableSpan(
            span.name,
            context=_context(span.trace_id, span.id),
            parent=_context(span.trace_id, span.parent_id) if span.parent_id else None,
            resource=self._resource,
            attributes=span.attributes,
            events=events,
            links=links,
            kind=_KINDS[span.kind],
            status=status,
            start_time=span.start_us * NANO,
            end_time=span.end_us * NANO,
            instrumentation_scope=self._scope,
        )


def _context(trace: int, span: int) -> SpanContext:
    return SpanContext(trace, span, is_remote=False, trace_flags=_SAMPLED)
