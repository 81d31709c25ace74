"""The collector behind the standard OTEL_* variables. Nothing else imports OpenTelemetry, but for the encoding.

The OpenTelemetry SDK reads the sampler and the description of this service from the environment.
"""

import gzip
import ssl
from collections.abc import Mapping, Sequence
from typing import Final

import httpx2
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue
from opentelemetry.proto.resource.v1.resource_pb2 import Resource as ResourceMessage
from opentelemetry.proto.trace.v1.trace_pb2 import ScopeSpans, SpanFlags, Status
from opentelemetry.proto.trace.v1.trace_pb2 import Span as Message
from opentelemetry.sdk.resources import SERVICE_NAME, SERVICE_VERSION, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.sampling import Decision
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags, set_span_in_context

from soong.orchestrator.telemetry.spans import Attribute, Span, TraceOrigin
from soong.shared.core.log import OtlpTarget

NANO: Final = 1000
SCOPE: Final = "soong"
# The flags of a parent or a linked span: it is one of this service.
_LOCAL: Final = SpanFlags.SPAN_FLAGS_CONTEXT_HAS_IS_REMOTE_MASK
_KINDS: Final = {"internal": Message.SPAN_KIND_INTERNAL, "client": Message.SPAN_KIND_CLIENT}

CONTENT_TYPE: Final = "application/x-protobuf"


def service(version: str) -> Resource:
    """Return what describes this service: as OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES say, else ``soong``."""
    named = Resource.create({SERVICE_VERSION: version})
    is_unknown = str(named.attributes.get(SERVICE_NAME, "")).startswith("unknown_service")
    return named.merge(Resource({SERVICE_NAME: "soong"})) if is_unknown else named


class OtlpCollector:
    """The receiver of spans. Its calls block."""

    def __init__(self, target: OtlpTarget, version: str) -> None:
        """Raises: OSError, a certificate cannot be used."""
        described = service(version)
        self._version = version
        self._resource = resource_of(described.attributes)
        self._sampler = TracerProvider(resource=described, shutdown_on_exit=False).sampler
        self._sender = OtlpSender(target)

    def is_sampled(self, origin: TraceOrigin) -> bool:
        context = None
        if origin.parent_id:
            flags = TraceFlags(TraceFlags.SAMPLED) if origin.is_sampled else TraceFlags(TraceFlags.DEFAULT)
            parent = SpanContext(origin.trace_id, origin.parent_id, is_remote=True, trace_flags=flags)
            context = set_span_in_context(NonRecordingSpan(parent))
        asked = self._sampler.should_sample(context, origin.trace_id, "invoke_workflow")
        return asked.decision is Decision.RECORD_AND_SAMPLE

    def send(self, spans: Sequence[Span]) -> str:
        """Return why it did not take them, empty when it did; of no spans, why it does not answer."""
        return self._sender.post(encode(spans, self._resource, self._version))

    def close(self) -> None:
        self._sender.close()


def resource_of(attributes: Mapping[str, object]) -> ResourceMessage:
    """Return what describes the service that sends; values of kinds that spans do not have are left out."""
    resource = ResourceMessage()
    for name, value in attributes.items():
        if isinstance(value, str | int | float | tuple):
            _set(resource.attributes.add(key=name).value, value)
    return resource


def encode(spans: Sequence[Span], resource: ResourceMessage, version: str) -> bytes:
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
        for name, value in event.attributes.items():
            _set(noted.attributes.add(key=name).value, value)
    if span.error:
        message.status.code = Status.STATUS_CODE_ERROR
        message.status.message = _unicode(span.message or span.error)


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


class OtlpSender:
    """One collector. Its calls block; none takes much longer than the time limit of the target."""

    def __init__(self, target: OtlpTarget) -> None:
        """Raises: OSError, a certificate cannot be used."""
        headers = {"user-agent": "soong", **target.headers, "content-type": CONTENT_TYPE}
        if target.is_compressed:
            headers["content-encoding"] = "gzip"
        self._target = target
        # A collector of the operator's choice: a redirect would take its key elsewhere.
        self._client = httpx2.Client(
            headers=headers, timeout=target.timeout_s, verify=_trusted(target), follow_redirects=False
        )

    def post(self, message: bytes) -> str:
        """Return why the collector did not take a message; empty when it did. Its words are not read."""
        body = gzip.compress(message) if self._target.is_compressed else message
        try:
            with self._client.stream("POST", self._target.url, content=body) as response:
                status = response.status_code
        except (httpx2.HTTPError, httpx2.InvalidURL, OSError, ValueError, RuntimeError) as error:
            return f"it cannot be reached ({type(error).__name__})"
        return "" if 200 <= status < 300 else f"it answered {status}"

    def close(self) -> None:
        self._client.close()


def _trusted(target: OtlpTarget) -> ssl.SSLContext | bool:
    """Raises: OSError."""
    if not target.certificate and not target.client_certificate:
        return target.url.startswith("https:")  # the certificates of the system take a while to read
    context = ssl.create_default_context(cafile=target.certificate or None)
    if target.client_certificate:
        context.load_cert_chain(target.client_certificate, target.client_key or None)
    return context
