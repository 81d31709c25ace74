"""The reports of a process: structured logs on standard error, and where OpenTelemetry's variables send its traces.

Logs are one line per event, JSON when it is not a terminal. Modules call ``get_logger(__name__)`` and log nouns and
facts, never secrets or payloads. structlog is imported with the first line that is written: it costs a third of the
start of a command, and most commands write none.

``OTEL_*`` is the interface of every service that is observed this way, so Soong has no settings of its own for it. The
rest (sampling, resource) is read by the OpenTelemetry SDK.
"""

import logging
import os
import re
import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote

import msgspec

from soong.shared.core.jsontext import inert
from soong.shared.core.startup import drawing_stream
from soong.shared.core.value import Value

if TYPE_CHECKING:
    from structlog.typing import EventDict, Processor, WrappedLogger


Clean = Callable[[str], str]


class _LogSettings(Value):
    """The arguments of :func:`configure`, until structlog is there."""

    level: int
    process: str
    clean: Clean


class _Pending:
    """The settings that structlog has yet to be given; none when it has them, or when nobody gave any."""

    settings: _LogSettings | None = None


_pending: Final = _Pending()


class Logger:
    """Writes events of one module. Below the level of the process it does nothing."""

    __slots__ = ("_module",)

    def __init__(self, module: str) -> None:
        self._module = module

    def debug(self, event: str, **facts: object) -> None:
        self._write("debug", logging.DEBUG, event, facts)

    def info(self, event: str, **facts: object) -> None:
        self._write("info", logging.INFO, event, facts)

    def warning(self, event: str, **facts: object) -> None:
        self._write("warning", logging.WARNING, event, facts)

    def error(self, event: str, **facts: object) -> None:
        self._write("error", logging.ERROR, event, facts)

    def critical(self, event: str, **facts: object) -> None:
        self._write("critical", logging.CRITICAL, event, facts)

    def exception(self, event: str, **facts: object) -> None:
        """Write an error with the traceback of the exception that is being handled."""
        self._write("error", logging.ERROR, event, {"exc_info": True, **facts})

    def _write(self, method: str, level: int, event: str, facts: dict[str, object]) -> None:
        settings = _pending.settings
        if settings is not None and level < settings.level:
            return
        import structlog  # see above

        if settings is not None:
            _apply(settings)
        getattr(structlog.get_logger(module=self._module), method)(event, **facts)


def configure(level: str, *, process: str, clean: Clean = str) -> None:
    """Set up logging for a process named ``process`` (orchestrator, worker, cli). ``clean`` takes secrets out of every
    text before it is written, tracebacks among them (EVT-05).
    """
    _pending.settings = _LogSettings(logging.getLevelNamesMapping()[level.upper()], process, clean)
    if "structlog" in sys.modules:
        _apply(_pending.settings)


def get_logger(name: str) -> Logger:
    return Logger(name)


def _apply(settings: _LogSettings) -> None:
    import structlog

    is_shown = sys.stderr.isatty()
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            _cleaner(settings.clean),
            *(_for_terminals() if is_shown else (structlog.processors.JSONRenderer(),)),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(settings.level),
        # The stream of the process, also while a run is current (soong.shared.core.log_lines).
        logger_factory=structlog.PrintLoggerFactory(drawing_stream(getattr(sys.stderr, "behind", sys.stderr))),
    )
    structlog.contextvars.bind_contextvars(process=settings.process)
    _pending.settings = None


def _for_terminals() -> "tuple[Processor, ...]":
    """Return what writes an entry in colours, every text of it inert: the stream must not take the colours out."""
    import structlog

    renderer = structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback)
    return _cleaner(inert), renderer


def _cleaner(clean: Clean) -> "Callable[[WrappedLogger, str, EventDict], EventDict]":
    def clean_all(_logger: "WrappedLogger", _method: str, event: "EventDict") -> "EventDict":
        return {name: _cleaned(value, clean) for name, value in event.items()}

    return clean_all


def _cleaned(value: object, clean: Clean) -> object:
    """Return a field without secrets; a value that is neither text nor a plain collection is written as its text."""
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, dict):
        return {clean(str(name)): _cleaned(item, clean) for name, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_cleaned(item, clean) for item in value]
    return clean(value if isinstance(value, str) else repr(value))


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
