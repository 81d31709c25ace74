"""The check of ``soong doctor`` on OpenTelemetry: what stops traces from being sent is said before a run is missing."""

import sys

import pytest

from soong.orchestrator.doctor.checks import check_telemetry
from soong.orchestrator.doctor.machine import Finding, Level
from soong.shared.core.installation import install_line
from soong.shared.core.settings import load_settings
from tests.otlp_receiver import otlp_receiver
from tests.servers import free_port

pytestmark = pytest.mark.spec("OPS-05.a", "OPS-07.c")


async def checked(monkeypatch: pytest.MonkeyPatch, endpoint: str, **variables: str) -> Finding:
    for name, value in {"OTEL_EXPORTER_OTLP_ENDPOINT": endpoint, **variables}.items():
        monkeypatch.setenv(name, value)
    return await check_telemetry(load_settings())


async def test_telemetry_that_is_off_is_said_and_a_variable_that_cannot_be_followed_warns(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    finding = await checked(monkeypatch, "")

    assert (finding.level, finding.says.partition(":")[0]) == (Level.OK, "off")

    finding = await checked(monkeypatch, "http://127.0.0.1:4318", OTEL_EXPORTER_OTLP_PROTOCOL="grpc")

    assert (finding.level, "expected http/protobuf" in finding.says) == (Level.WARN, True)


async def test_a_collector_that_answers_is_named_without_the_password_of_its_url(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with otlp_receiver() as collector:
        finding = await checked(monkeypatch, f"http://ada:secret@127.0.0.1:{collector.port}")

    assert (finding.level, finding.says) == (Level.OK, f"traces go to 127.0.0.1:{collector.port}")


@pytest.mark.parametrize("endpoint", ["collector", "http://", "http://127.0.0.1:99999", "http://[::1"])
async def test_an_endpoint_that_is_no_url_warns(monkeypatch: pytest.MonkeyPatch, endpoint: str) -> None:
    finding = await checked(monkeypatch, endpoint)

    assert (finding.level, finding.says) == (Level.WARN, "the endpoint is not a URL")


async def test_a_collector_that_does_not_answer_warns(monkeypatch: pytest.MonkeyPatch) -> None:
    port = free_port()

    finding = await checked(monkeypatch, f"http://127.0.0.1:{port}")

    assert finding.level is Level.WARN
    assert finding.says.startswith(f"the collector at 127.0.0.1:{port} does not answer: ")


async def test_without_the_extra_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace", None)

    finding = await checked(monkeypatch, "http://127.0.0.1:4318")

    assert (finding.level, finding.hint) == (Level.WARN, install_line("otel"))
