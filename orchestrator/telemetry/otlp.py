"""The collector behind the standard OTEL_* variables. Nothing else imports OpenTelemetry, but for the encoding.

Which traces are sampled and what describes this service is read from the environment by the OpenTelemetry SDK itself.
"""

from collections.abc import Sequence
from typing import Final

from opentelemetry.sdk.resources import SERVICE_NAME, SERVICE_VERSION, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.sampling import Decision
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags, set_span_in_context

from soong.orchestrator.telemetry.otlp_encoding import encode, resource_of
from soong.orchestrator.telemetry.otlp_sender import OtlpSender
from soong.orchestrator.telemetry.spans import Span, TraceOrigin
from soong.shared.core.telemetry import OtlpTarget

_SAMPLED: Final = TraceFlags(TraceFlags.SAMPLED)
_NOT_SAMPLED: Final = TraceFlags(TraceFlags.DEFAULT)


def service(version: str) -> Resource:
    """Return what describes this service: as OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES say, else ``soong``."""
    named = Resource.create({SERVICE_VERSION: version})
    is_unknown = str(named.attributes.get(SERVICE_NAME, "")).startswith("unknown_service")
    return named.merge(Resource({SERVICE_NAME: "soong"})) if is_unknown else named


class OtlpCollector:
    """Implements :class:`soong.orchestrator.telemetry.span_consumer.Collector`."""

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
            flags = _SAMPLED if origin.is_sampled else _NOT_SAMPLED
            parent = SpanContext(origin.trace_id, origin.parent_id, is_remote=True, trace_flags=flags)
            context = set_span_in_context(NonRecordingSpan(parent))
        asked = self._sampler.should_sample(context, origin.trace_id, "invoke_workflow")
        return asked.decision is Decision.RECORD_AND_SAMPLE

    def send(self, spans: Sequence[Span]) -> str:
        return self._sender.post(encode(spans, self._resource, self._version))

    def close(self) -> None:
        """Close the connection."""
        self._sender.close()
