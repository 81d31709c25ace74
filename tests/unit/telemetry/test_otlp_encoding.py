"""Our spans as messages of OTLP, beside what the SDK's own exporter makes of the same."""

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

from soong.orchestrator.telemetry.otlp import NANO, encode, resource_of
from soong.orchestrator.telemetry.spans import Attribute, Span, SpanEvent

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
