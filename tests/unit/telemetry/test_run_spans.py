"""Spans of events, and the stored state of a reader of logs."""

import json
from collections.abc import Sequence

import pytest
from msgspec.structs import fields

from soong.orchestrator.telemetry.run_spans import RunSpans
from soong.orchestrator.telemetry.spans import MAX_OPEN, OpenSpan, OpenWork, Span, TraceOrigin, parse_trace_parent
from soong.shared.core.identity import Role, RunIdentity
from soong.shared.core.jsontext import Json
from soong.shared.core.log import load_telemetry
from soong.shared.engine.runs.events import Event, EventType
from soong.shared.engine.tasks.event_feed import FeedRun
from soong.shared.engine.tasks.spec import TaskKind

IDENTITY = RunIdentity("sess_1", "run_1", "agent_1", Role.WORKER, "reviewer", parent_run_id="run_0", task_id="task_1")
RUN = FeedRun(IDENTITY, 1, "", 0, "audit", TaskKind.PLAN, is_root=False)


def event(seq: int, type: EventType, **data: Json) -> Event:
    return Event("run_1", seq, type, seq * 1_000_000, data)


CALL: Sequence[Event] = (
    event(1, EventType.RUN_STARTED, fence=1),
    event(2, EventType.MODEL_REQUESTED, turn=1, model="anthropic:claude"),
    event(3, EventType.MODEL_FAILED, attempt=1, message="busy", is_retried=True, status=429),
    event(4, EventType.MODEL_RESPONDED, turn=1, model="anthropic:claude", input_tokens=7, cost_usd="0.25"),
    event(5, EventType.TOOL_STARTED, tool_call_id="c1", tool="code.read_file", input={"path": "/secret plans"}),
    event(6, EventType.TOOL_FAILED, tool_call_id="c1", tool="code.read_file", error="not_found", summary="none"),
    event(7, EventType.RUN_COMPLETED, end_reason="completed"),
)


def spans_of(events: Sequence[Event], *, content: bool = False) -> list[Span]:
    reader = RunSpans(RUN, TraceOrigin(1), OpenWork(), content)
    return [span for one in events for span in reader.take(one)]


@pytest.mark.spec("OPS-05.a")
def test_a_run_is_an_agent_with_its_requests_and_calls() -> None:
    chat, tool, agent = spans_of(CALL)

    assert [span.name for span in (chat, tool, agent)] == [
        "chat anthropic:claude",
        "execute_tool code.read_file",
        "invoke_agent reviewer",
    ]
    assert {chat.parent_id, tool.parent_id} == {agent.id}
    assert (chat.attributes["gen_ai.provider.name"], chat.attributes["soong.cost_usd"]) == ("anthropic", 0.25)
    assert (tool.error, chat.error, agent.error) == ("not_found", "", "")
    assert agent.attributes["gen_ai.usage.input_tokens"] == 7
    assert [(note.name, note.attributes) for note in agent.events] == [("model_failed", {"about": "429"})]


@pytest.mark.spec("OPS-05.a")
@pytest.mark.parametrize("cut", range(1, len(CALL)))
def test_an_exporter_that_starts_again_anywhere_makes_the_same_spans(cut: int) -> None:
    first = RunSpans(RUN, TraceOrigin(1), OpenWork())
    before = [span for one in CALL[:cut] for span in first.take(one)]
    second = RunSpans(RUN, TraceOrigin(1), OpenWork.from_json(first.work.as_json()))
    after = [span for one in CALL[cut:] for span in second.take(one)]

    assert before + after == spans_of(CALL)


@pytest.mark.spec("OPS-05.a")
def test_content_is_told_only_when_asked_for() -> None:
    assert "secret plans" not in repr(spans_of(CALL))
    assert "secret plans" in repr(spans_of(CALL, content=True))


@pytest.mark.spec("OPS-05.a")
@pytest.mark.parametrize("value", [None, -1, True, 10**30, "\x1b[2J", "x" * 10_000, [], {"a": {}}, 1.5])
def test_what_a_taken_over_worker_writes_ends_no_reading(value: Json) -> None:
    names = ("fence", "turn", "model", "attempt", "status", "duration_ms", "tool_call_id", "tool", "input", "error")
    more = ("request_id", "choice", "input_tokens", "cost_usd", "message", "is_retried", "summary", "what", "reason")
    data = dict.fromkeys((*names, *more), value)

    spans = spans_of([event(seq, kind, **data) for seq, kind in enumerate(EventType, start=1)])

    assert all(span.start_us <= span.end_us for span in spans)
    assert all(len(text) <= 1000 for span in spans for text in span.attributes.values() if isinstance(text, str))
    assert "\x1b" not in repr(spans).replace("\\x1b", "")


@pytest.mark.spec("OPS-05.a")
def test_calls_that_never_end_are_forgotten_at_some_point() -> None:
    reader = RunSpans(RUN, TraceOrigin(1), OpenWork())

    for seq in range(1, 3 * MAX_OPEN):
        list(reader.take(event(seq, EventType.TOOL_STARTED, tool_call_id=f"c{seq}", tool="t")))

    assert len(reader.work.calls) == MAX_OPEN


@pytest.mark.spec("OPS-05.a")
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("00-" + "a" * 32 + "-" + "b" * 16 + "-01", TraceOrigin(int("a" * 32, 16), int("b" * 16, 16))),
        ("00-" + "a" * 32 + "-" + "b" * 16 + "-00", TraceOrigin(int("a" * 32, 16), int("b" * 16, 16), False)),
        ("00-" + "0" * 32 + "-" + "b" * 16 + "-01", None),
        ("ff-" + "a" * 32 + "-" + "b" * 16 + "-01", None),
        ("anything", None),
    ],
)
def test_a_trace_parent_is_taken_as_the_standard_says(text: str, expected: TraceOrigin | None) -> None:
    assert parse_trace_parent(text) == expected


@pytest.mark.spec("OPS-05.a")
@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("OTEL_TRACES_EXPORTER", "zipkin", "expected otlp or none"),
        ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc", "expected http/protobuf"),
        ("OTEL_BSP_SCHEDULE_DELAY", "soon", "milliseconds"),
        ("OTEL_EXPORTER_OTLP_TIMEOUT", "0", "milliseconds"),
        ("OTEL_EXPORTER_OTLP_COMPRESSION", "zstd", "expected gzip or none"),
        ("OTEL_EXPORTER_OTLP_HEADERS", "secret", "expected name=value"),
        ("OTEL_EXPORTER_OTLP_HEADERS", "a=b%0d%0ac: d", "expected name=value"),
    ],
)
def test_a_variable_that_cannot_be_followed_says_why(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str, words: str
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:4318")
    monkeypatch.setenv(name, value)

    settings = load_telemetry()

    assert words in settings.problem
    assert "secret" not in settings.problem
    assert not settings.traces


def test_what_is_open_is_stored_whole_and_read_again() -> None:
    span = OpenSpan(5, {"tool": "code.read_file"}, {"fence": 2})
    notes = [("asked", 7, "code.read_file")]
    work = OpenWork(3, span, span, {"call_1": span}, {"req_1": span}, notes, 8, 9, "worker_1")
    assert all(getattr(work, one.name) != getattr(OpenWork(), one.name) for one in fields(OpenWork))

    stored = json.loads(json.dumps(work.as_json()))

    assert stored.keys() == {one.name for one in fields(OpenWork)}
    assert OpenWork.from_json(stored) == work
