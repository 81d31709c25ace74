"""Spans over OTLP: encoded as the SDK encodes them, and sent as the OTEL_* variables say (OPS-05)."""

import http.server
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import Event, ReadableSpan
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import Link, SpanContext, SpanKind, Status, StatusCode, TraceFlags

from soong.orchestrator.telemetry.otlp import NANO, OtlpCollector, OtlpSender, encode, resource_of
from soong.orchestrator.telemetry.spans import Attribute, Span, SpanEvent
from soong.shared.core.log import OtlpTarget, load_telemetry
from tests.loopback import http_on_a_thread
from tests.otlp_receiver import otlp_receiver
from tests.servers import free_port

pytestmark = pytest.mark.spec("OPS-05.a")

SERVICE: dict[str, Any] = {"service.name": "soong", "service.version": "1", "host.cpus": 2, "labels": ("a", "b")}
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
TIMES = st.integers(0, 2**53 - 1)
VALUES: st.SearchStrategy[Attribute] = st.one_of(
    TEXTS, st.integers(-(2**63), 2**63 - 1), st.floats(allow_nan=False), st.booleans(), st.lists(TEXTS).map(tuple)
)
ATTRIBUTES = st.dictionaries(TEXTS, VALUES, max_size=5)
IDS = st.integers(1, 2**64 - 1)
SPANS = st.builds(
    Span,
    trace_id=st.integers(1, 2**128 - 1),
    id=IDS,
    parent_id=st.integers(0, 2**64 - 1),
    name=TEXTS,
    start_us=TIMES,
    end_us=TIMES,
    attributes=ATTRIBUTES,
    kind=st.sampled_from(["internal", "client"]),
    links=st.lists(IDS, max_size=2).map(tuple),
    events=st.lists(st.builds(SpanEvent, TEXTS, TIMES, ATTRIBUTES), max_size=2).map(tuple),
    error=TEXTS,
    message=TEXTS,
)


def context(trace: int, span: int) -> SpanContext:
    return SpanContext(trace, span, is_remote=False, trace_flags=TraceFlags(TraceFlags.SAMPLED))


def of_sdk(span: Span) -> ReadableSpan:
    return ReadableSpan(
        span.name,
        context=context(span.trace_id, span.id),
        parent=context(span.trace_id, span.parent_id) if span.parent_id else None,
        resource=Resource(SERVICE),
        attributes=span.attributes,
        events=[Event(event.name, event.attributes, event.time_us * NANO) for event in span.events],
        links=[Link(context(span.trace_id, linked)) for linked in span.links],
        kind=SpanKind.CLIENT if span.kind == "client" else SpanKind.INTERNAL,
        status=Status(StatusCode.ERROR, span.message or span.error) if span.error else Status(),
        start_time=span.start_us * NANO,
        end_time=span.end_us * NANO,
        instrumentation_scope=InstrumentationScope("soong", "1"),
    )


def messages(*spans: Span) -> ExportTraceServiceRequest:
    request = ExportTraceServiceRequest()
    request.MergeFromString(encode(spans, resource_of(SERVICE), "1"))
    return request


@given(st.lists(SPANS, max_size=3))
def test_a_request_is_the_one_of_the_sdk(spans: list[Span]) -> None:
    expected = encode_spans([of_sdk(span) for span in spans])
    for resource in expected.resource_spans:
        for span in resource.scope_spans[0].spans:
            if not span.status.code:
                span.ClearField("status")  # which says no more than none

    assert messages(*spans) == expected


@pytest.mark.parametrize("text", ["\ud800", "\0", "\u202e", "x" * 1_000_000], ids=["half", "nul", "bidi", "long"])
def test_hostile_text_stops_no_span(text: str) -> None:
    span = Span(1, 2, 3, text, 0, 1, {"a": text, "b": (text,)}, events=(SpanEvent(text, 1, {"c": text}),), error=text)

    (sent,) = messages(span).resource_spans[0].scope_spans[0].spans

    told = text.replace("\ud800", "?")
    assert {sent.name, sent.attributes[0].value.string_value, sent.status.message, sent.events[0].name} == {told}


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
