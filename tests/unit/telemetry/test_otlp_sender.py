"""Posting to a collector, a real server on the loopback."""

import http.server
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from soong.orchestrator.telemetry.otlp import OtlpCollector, OtlpSender
from soong.orchestrator.telemetry.spans import Span
from soong.shared.core.log import OtlpTarget, load_telemetry
from tests.loopback import http_on_a_thread
from tests.otlp_receiver import otlp_receiver
from tests.servers import free_port

pytestmark = pytest.mark.spec("OPS-05.a")

SPAN = Span(1, 2, 0, "chat", 0, 1, {})


@contextmanager
def server(status: int, headers: dict[str, str]) -> Iterator[tuple[str, list[dict[str, str]]]]:
    """Run one that answers so; yields its URL and the headers of the requests that it got."""
    got: list[dict[str, str]] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            got.append({name.lower(): value for name, value in self.headers.items()})
            self.send_response(status)
            for name, value in {"Content-Length": "0", **headers}.items():
                self.send_header(name, value)
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            """Say nothing."""

    with http_on_a_thread(Handler) as port:
        yield f"http://127.0.0.1:{port}", got


def posted(target: OtlpTarget, message: bytes = b"") -> str:
    sender = OtlpSender(target)
    try:
        return sender.post(message)
    finally:
        sender.close()


@pytest.mark.parametrize("compression", ["gzip", "none"])
def test_a_collector_gets_spans_as_the_variables_say(monkeypatch: pytest.MonkeyPatch, compression: str) -> None:
    with otlp_receiver() as receiver:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", receiver.endpoint)
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_COMPRESSION", compression)
        monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "service.name=ours")
        collector = OtlpCollector(load_telemetry().target, "1")

        assert collector.send([SPAN]) == ""
        assert collector.send([]) == ""
        collector.close()

    assert [span.name for span in receiver.spans] == ["chat"]
    assert receiver.services == {"ours"}


def test_headers_are_sent_with_the_kind_of_message_and_a_redirect_takes_them_nowhere() -> None:
    with server(200, {}) as (url, got):
        assert posted(OtlpTarget(url, {"x-key": "k", "content-type": "text/html"})) == ""

    assert (got[0]["x-key"], got[0]["content-type"]) == ("k", "application/x-protobuf")

    with server(200, {}) as (elsewhere, got), server(307, {"Location": elsewhere}) as (url, _):
        assert posted(OtlpTarget(url, {"x-key": "k"})) == "it answered 307"

    assert got == []


def test_a_collector_that_is_away_or_slow_is_said_in_words() -> None:
    assert posted(OtlpTarget(f"http://127.0.0.1:{free_port()}/v1/traces")) == "it cannot be reached (ConnectError)"
    assert posted(OtlpTarget("nonsense")).startswith("it cannot be reached (")


def test_an_unusable_certificate_is_an_error_at_once(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="No such file"):
        OtlpSender(OtlpTarget("https://127.0.0.1:1", certificate=str(tmp_path / "none.pem")))


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({}, OtlpTarget("http://localhost:4318/v1/traces")),
        (
            {"ENDPOINT": "https://c:1/", "HEADERS": "X-Key=a%20b=,n=1", "TIMEOUT": "2500", "CERTIFICATE": "/ca.pem"},
            OtlpTarget("https://c:1/v1/traces", {"x-key": "a b=", "n": "1"}, certificate="/ca.pem", timeout_s=2.5),
        ),
        (
            {"ENDPOINT": "http://c", "TRACES_ENDPOINT": "http://t/x", "HEADERS": "a=1", "TRACES_HEADERS": "b=2"},
            OtlpTarget("http://t/x", {"b": "2"}),
        ),
    ],
    ids=["none", "all", "of traces"],
)
def test_the_target_is_what_the_variables_say(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], expected: OtlpTarget
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(f"OTEL_EXPORTER_OTLP_{name}", value)

    assert load_telemetry().target == expected
