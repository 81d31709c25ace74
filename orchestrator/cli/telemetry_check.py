"""The check of ``soong doctor`` on OpenTelemetry: what the OTEL_* variables ask for, and whether it can be done."""

import asyncio
from importlib.util import find_spec
from urllib.parse import urlsplit

from soong.orchestrator.cli.finding import Finding, Level
from soong.shared.core import timing
from soong.shared.core.installation import install_line
from soong.shared.core.settings import Settings
from soong.shared.core.telemetry import load_telemetry

_CHECK = "telemetry"


async def check_telemetry(_settings: Settings) -> Finding:
    """Nothing is sent: whether the collector takes spans is seen in its log and in that of the orchestrator."""
    wanted = load_telemetry()
    if wanted.problem:
        return Finding(_CHECK, Level.WARN, f"off: {wanted.problem}", "correct the variable where orchestrators run")
    if not wanted.traces:
        return Finding(_CHECK, Level.OK, "off: no OTEL_* variable asks for traces")
    if not _is_installed():
        hint = install_line("otel")
        return Finding(_CHECK, Level.WARN, "off: OpenTelemetry is not installed", hint)
    try:
        parts = urlsplit(wanted.endpoint)
        host, port = parts.hostname, parts.port or {"https": 443, "http": 80}.get(parts.scheme)
    except ValueError:
        host, port = None, None
    if not host or not port:  # not shown: it may hold a password
        return Finding(
            _CHECK, Level.WARN, "the endpoint is not a URL", "set OTEL_EXPORTER_OTLP_ENDPOINT to http://HOST:4318"
        )
    if problem := await _unreachable(host, port):
        hint = "start the collector, or correct OTEL_EXPORTER_OTLP_ENDPOINT; spans are kept for 24 hours meanwhile"
        return Finding(_CHECK, Level.WARN, f"the collector at {host}:{port} does not answer: {problem}", hint)
    return Finding(_CHECK, Level.OK, f"traces go to {host}:{port}")


def _is_installed() -> bool:
    try:
        return (
            find_spec("opentelemetry.sdk.trace") is not None and find_spec("opentelemetry.proto.trace.v1") is not None
        )
    except ModuleNotFoundError:
        return False


async def _unreachable(host: str, port: int) -> str:
    """Say why there is no connection; empty when there is one."""
    try:
        async with asyncio.timeout(timing.COMMAND_LIMIT_S):
            _, writer = await asyncio.open_connection(host, port)
    except TimeoutError:
        return f"no connection within {timing.COMMAND_LIMIT_S:g} s"
    except OSError as error:
        return error.strerror or str(error)
    writer.close()
    return ""
