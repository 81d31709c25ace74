"""The standard variables of OpenTelemetry that Soong itself reads: whether, how often, and where to.

``OTEL_*`` is the interface of every service that is observed this way, so Soong has no settings of its own for it. The
rest (sampling, resource) is read by the OpenTelemetry SDK.
"""

import os
import re
from collections.abc import Mapping
from typing import Final
from urllib.parse import unquote

import msgspec

from soong.shared.core.value import Value

CONTENT: Final = "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"
ENDPOINT: Final = "OTEL_EXPORTER_OTLP_ENDPOINT"
TRACES_ENDPOINT: Final = "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"
DEFAULT_ENDPOINT: Final = "http://localhost:4318"
PROTOCOL: Final = "http/protobuf"
_TRACE_PARENT: Final = re.compile(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")
_HEADER_NAME: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_HEADER_VALUE: Final = re.compile(r"[ -~]*")
"""RFC 9110 section 5.5, without what a value should not have."""
_TRUE: Final = frozenset({"true", "1", "span_only", "span_and_event"})


class OtlpTarget(Value):
    """The destination of spans: OTLP over HTTP. Certificates are PEM files; empty: those of the system, and none.
    Source: OpenTelemetry Protocol Exporter specification.
    """

    UNSHOWN = frozenset({"headers"})

    url: str = ""
    headers: Mapping[str, str] = msgspec.field(default_factory=dict)
    """They often hold a key."""
    certificate: str = ""
    client_certificate: str = ""
    client_key: str = ""
    timeout_s: float = 10.0
    is_compressed: bool = False


class TelemetrySettings(Value):
    """The exported signals and their ``endpoint``. ``problem`` is why nothing is sent although telemetry is on."""

    traces: bool = False
    endpoint: str = ""
    target: OtlpTarget = msgspec.field(default_factory=OtlpTarget)
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
            target=_target(),
            captures_content=_value(CONTENT).lower() in _TRUE,
            interval_s=_seconds("OTEL_BSP_SCHEDULE_DELAY", "5000"),
        )
    except ValueError as error:
        return TelemetrySettings(problem=str(error))


def trace_parent() -> str:
    """Return the span that started this program, from a build server or a traced parent; empty without one."""
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
    protocol = _of_traces("PROTOCOL") or PROTOCOL
    if protocol != PROTOCOL:
        raise ValueError(
            f"OTEL_EXPORTER_OTLP_PROTOCOL={protocol!r} is not supported; expected {PROTOCOL}, "
            "which collectors take on port 4318"
        )
    return True


def _target() -> OtlpTarget:
    """Raises: ValueError."""
    compression = _of_traces("COMPRESSION") or "none"
    if compression not in {"gzip", "none"}:
        raise ValueError(f"OTEL_EXPORTER_OTLP_COMPRESSION={compression!r} is not supported; expected gzip or none")
    base = _value(ENDPOINT) or DEFAULT_ENDPOINT
    return OtlpTarget(
        url=_value(TRACES_ENDPOINT) or f"{base.removesuffix('/')}/v1/traces",
        headers=_headers(_of_traces("HEADERS")),
        certificate=_of_traces("CERTIFICATE"),
        client_certificate=_of_traces("CLIENT_CERTIFICATE"),
        client_key=_of_traces("CLIENT_KEY"),
        timeout_s=_seconds("OTEL_EXPORTER_OTLP_TRACES_TIMEOUT", _value("OTEL_EXPORTER_OTLP_TIMEOUT") or "10000"),
        is_compressed=compression == "gzip",
    )


def _of_traces(name: str) -> str:
    """Return a variable of the exporter: the one for traces, or the one for all signals."""
    return _value(f"OTEL_EXPORTER_OTLP_TRACES_{name}") or _value(f"OTEL_EXPORTER_OTLP_{name}")


def _headers(text: str) -> Mapping[str, str]:
    """Return the headers in ``name=value,name=value``, whose values may be percent-encoded. Raises: ValueError."""
    headers: dict[str, str] = {}
    for part in filter(None, map(str.strip, text.split(","))):
        name, equals, value = map(str.strip, part.partition("="))
        value = unquote(value)
        if not equals or not _HEADER_NAME.fullmatch(name) or not _HEADER_VALUE.fullmatch(value):
            # Neither is shown: a key may stand on the wrong side.
            raise ValueError("OTEL_EXPORTER_OTLP_HEADERS has a part that is not a header: expected name=value,…")
        headers[name.lower()] = value
    return headers


def _seconds(name: str, default_ms: str) -> float:
    text = _value(name) or default_ms
    if not text.isdecimal() or int(text) == 0:
        raise ValueError(f"{name}={text!r} is not a number of milliseconds above 0")
    return int(text) / 1000


def _value(name: str) -> str:
    return os.environ.get(name, "").strip()
