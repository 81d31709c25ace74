"""The standard variables of OpenTelemetry that Soong itself reads: whether, and how often.

``OTEL_*`` is the interface of every service that is observed this way, so Soong has no settings of its own for it. The
rest (endpoint, headers, certificates, sampling, resource) is read by the OpenTelemetry SDK.
"""

import os
import re
from dataclasses import dataclass
from typing import Final

CONTENT: Final = "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"
ENDPOINT: Final = "OTEL_EXPORTER_OTLP_ENDPOINT"
TRACES_ENDPOINT: Final = "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"
DEFAULT_ENDPOINT: Final = "http://localhost:4318"
PROTOCOL: Final = "http/protobuf"
_TRACE_PARENT: Final = re.compile(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")
_TRUE: Final = frozenset({"true", "1", "span_only", "span_and_event"})


@dataclass(frozen=True, slots=True)
class TelemetrySettings:
    """What is sent, and to which ``endpoint``. ``problem`` says why nothing is although something should be."""

    traces: bool = False
    endpoint: str = ""
    captures_content: bool = False
    interval_s: float = 5.0
    problem: str = ""


def load_telemetry() -> TelemetrySettings:
    """Read the variables. A request that cannot be met is a problem to report, and never ends a service."""
    if _value("OTEL_SDK_DISABLED").lower() == "true":
        return TelemetrySettings()
    try:
        return TelemetrySettings(
            traces=_sends_traces(),
            endpoint=_value(TRACES_ENDPOINT) or _value(ENDPOINT) or DEFAULT_ENDPOINT,
            captures_content=_value(CONTENT).lower() in _TRUE,
            interval_s=_seconds("OTEL_BSP_SCHEDULE_DELAY", 5000),
        )
    except ValueError as error:
        return TelemetrySettings(problem=str(error))


def trace_parent() -> str:
    """Return the span that started this program, as a build server or a traced parent says it; empty without one."""
    return well_formed(_value("TRACEPARENT"))


def well_formed(traceparent: str) -> str:
    """Return a ``traceparent`` as it is, or nothing if it is malformed, which W3C Trace Context (3.2) has us ignore."""
    return traceparent if _TRACE_PARENT.fullmatch(traceparent) else ""


def _sends_traces() -> bool:
    """Say whether an exporter of traces is named, or an endpoint is. Raises: ValueError."""
    exporter = _value("OTEL_TRACES_EXPORTER")
    if exporter == "none" or not (exporter or _value(TRACES_ENDPOINT) or _value(ENDPOINT)):
        return False
    if exporter not in {"", "otlp"}:
        raise ValueError(f"OTEL_TRACES_EXPORTER={exporter!r} is not supported; expected otlp or none")
    protocol = _value("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL") or _value("OTEL_EXPORTER_OTLP_PROTOCOL") or PROTOCOL
    if protocol != PROTOCOL:
        raise ValueError(
            f"OTEL_EXPORTER_OTLP_PROTOCOL={protocol!r} is not supported; expected {PROTOCOL}, "
            "which collectors take on port 4318"
        )
    return True


def _seconds(name: str, default_ms: int) -> float:
    text = _value(name)
    if not text:
        return default_ms / 1000
    if not text.isdecimal() or int(text) == 0:
        raise ValueError(f"{name}={text!r} is not a number of milliseconds above 0")
    return int(text) / 1000


def _value(name: str) -> str:
    return os.environ.get(name, "").strip()
