"""Spans as a message of OTLP, the OpenTelemetry protocol.

The exporter of the SDK encodes spans of the SDK. Making those and encoding them takes four times as long as this.
"""

from collections.abc import Mapping, Sequence
from typing import Final

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue
from opentelemetry.proto.resource.v1.resource_pb2 import Resource
from opentelemetry.proto.trace.v1.trace_pb2 import ScopeSpans, SpanFlags, Status
from opentelemetry.proto.trace.v1.trace_pb2 import Span as Message

from soong.orchestrator.telemetry.spans import Attribute, Attributes, Span

NANO: Final = 1000
SCOPE: Final = "soong"
# Of a parent, or a span that is linked: it is one of this service.
_LOCAL: Final = SpanFlags.SPAN_FLAGS_CONTEXT_HAS_IS_REMOTE_MASK
_KINDS: Final = {"internal": Message.SPAN_KIND_INTERNAL, "client": Message.SPAN_KIND_CLIENT}


def resource_of(attributes: Mapping[str, object]) -> Resource:
    """Return what describes the service that sends; values of kinds that spans do not have are left out."""
    resource = Resource()
    for name, value in attributes.items():
        if isinstance(value, str | int | float | tuple):
            _set(resource.attributes.add(key=name).value, value)
    return resource


def encode(spans: Sequence[Span], resource: Resource, version: str) -> bytes:
    """Return a request to take these spans. Text that is not Unicode has replacements in it."""
    request = ExportTraceServiceRequest()
    if spans:
        sent = request.resource_spans.add(resource=resource).scope_spans.add()
        sent.scope.name, sent.scope.version = SCOPE, version
        for span in spans:
            _add(sent, span)
    message: bytes = request.SerializeToString()
    return message


def _add(sent: ScopeSpans, span: Span) -> None:
    trace = span.trace_id.to_bytes(16)
    message = sent.spans.add(
        trace_id=trace,
        span_id=span.id.to_bytes(8),
        kind=_KINDS[span.kind],
        start_time_unix_nano=span.start_us * NANO,
        end_time_unix_nano=span.end_us * NANO,
        flags=_LOCAL,
    )
    message.name = _unicode(span.name)
    if span.parent_id:
        message.parent_span_id = span.parent_id.to_bytes(8)
    add = message.attributes.add
    for name, value in span.attributes.items():
        _set(add(key=name).value, value)
    for linked in span.links:
        message.links.add(trace_id=trace, span_id=linked.to_bytes(8), flags=_LOCAL)
    for event in span.events:
        noted = message.events.add(name=_unicode(event.name), time_unix_nano=event.time_us * NANO)
        _set_all(noted, event.attributes)
    if span.error:
        message.status.code = Status.STATUS_CODE_ERROR
        message.status.message = _unicode(span.message or span.error)


def _set_all(message: Message.Event, attributes: Attributes) -> None:
    for name, value in attributes.items():
        _set(message.attributes.add(key=name).value, value)


def _set(field: AnyValue, value: Attribute) -> None:
    if isinstance(value, str):
        field.string_value = _unicode(value)
    elif isinstance(value, bool):
        field.bool_value = value
    elif isinstance(value, int):
        field.int_value = value
    elif isinstance(value, float):
        field.double_value = value
    else:
        field.array_value.SetInParent()  # an empty one, too, is there
        for item in value:
            field.array_value.values.add(string_value=_unicode(str(item)))


def _unicode(text: str) -> str:
    """Return a text without lone surrogates, which no protocol message takes."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode()
