"""Spans as values, their ids, and the names of their attributes.

An id is made of what a span stands for. So a span that is sent twice, because a process died between the sending and
its note of it, is the same span; and a child names its parent although that one ends later, in another process.

``gen_ai.*`` are the names of the OpenTelemetry GenAI semantic conventions, repository
open-telemetry/semantic-conventions-genai at commit 002c8a6e. They are still changing, so no library's constants are
imported; a later version of the conventions changes this module alone. ``soong.*`` are our own.
"""

import re
from collections.abc import Mapping
from functools import lru_cache
from hashlib import blake2b
from typing import Final, Literal, TypeAlias

import msgspec

from soong.shared.core.jsontext import JsonObject
from soong.shared.core.value import Value

OPERATION: Final = "gen_ai.operation.name"
INVOKE_WORKFLOW: Final = "invoke_workflow"
INVOKE_AGENT: Final = "invoke_agent"
CHAT: Final = "chat"
EXECUTE_TOOL: Final = "execute_tool"
PERMISSION: Final = "permission"
"""Not in the conventions: the time between a question and its decision."""

CONVERSATION: Final = "gen_ai.conversation.id"
WORKFLOW_NAME: Final = "gen_ai.workflow.name"
AGENT_ID: Final = "gen_ai.agent.id"
AGENT_NAME: Final = "gen_ai.agent.name"
PROVIDER: Final = "gen_ai.provider.name"
REQUEST_MODEL: Final = "gen_ai.request.model"
RESPONSE_MODEL: Final = "gen_ai.response.model"
RESPONSE_ID: Final = "gen_ai.response.id"
FINISH_REASONS: Final = "gen_ai.response.finish_reasons"
INPUT_TOKENS: Final = "gen_ai.usage.input_tokens"
OUTPUT_TOKENS: Final = "gen_ai.usage.output_tokens"
CACHED_TOKENS: Final = "gen_ai.usage.cache_read.input_tokens"
TOOL_NAME: Final = "gen_ai.tool.name"
TOOL_CALL: Final = "gen_ai.tool.call.id"
TOOL_TYPE: Final = "gen_ai.tool.type"
TOOL_ARGUMENTS: Final = "gen_ai.tool.call.arguments"
TOOL_RESULT: Final = "gen_ai.tool.call.result"
ERROR_TYPE: Final = "error.type"
STATUS_CODE: Final = "http.response.status_code"

RUN: Final = "soong.run.id"
PARENT_RUN: Final = "soong.parent_run.id"
TASK: Final = "soong.task.id"
STEP: Final = "soong.step.id"
STEP_TITLE: Final = "soong.step.title"
ATTEMPT: Final = "soong.attempt"
FENCE: Final = "soong.fence"
SEGMENT: Final = "soong.segment"
"""Which part of a run: it continues as another one after a pause for consent and after a lost worker."""
SEGMENT_END: Final = "soong.segment.end"
WORKER: Final = "soong.worker.id"
QUEUED: Final = "soong.queue_ms"
COST_USD: Final = "soong.cost_usd"
TURN: Final = "soong.turn"
REQUEST: Final = "soong.request.id"
RISK: Final = "soong.risk"
CHOICE: Final = "soong.decision.choice"
AUTHOR: Final = "soong.decision.author"
RULE: Final = "soong.decision.rule"


Attribute: TypeAlias = str | int | float | bool | tuple[str, ...]
Attributes: TypeAlias = Mapping[str, Attribute]

_TRACE_PARENT: Final = re.compile(r"(?!ff)[0-9a-f]{2}-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")
SAMPLED: Final = 1

MAX_OPEN: Final = 200
"""Calls and questions of one run at once; older ones are dropped. More than any turn has."""
MAX_NOTES: Final = 32
"""Events on one span."""


class TraceOrigin(Value):
    """The trace of a task. ``parent_id`` is the span outside of Soong that it hangs under, 0 where there is none."""

    trace_id: int
    parent_id: int = 0
    is_sampled: bool = True
    """The decision of that span's side; True without one."""


class SpanEvent(Value):
    name: str
    time_us: int
    attributes: Attributes = msgspec.field(default_factory=dict)


class Span(Value):
    """A span that has ended. ``links`` are spans of its trace; ``error`` is a type, empty of one that went well."""

    trace_id: int
    id: int
    parent_id: int
    name: str
    start_us: int
    end_us: int
    attributes: Attributes
    kind: Literal["internal", "client"] = "internal"
    links: tuple[int, ...] = ()
    events: tuple[SpanEvent, ...] = ()
    error: str = ""
    message: str = ""


@lru_cache(4096)  # each span names the one above it
def span_id(run_id: str, *place: str | int) -> int:
    return _number("/".join((run_id, *map(str, place))), 8)


def trace_id(task_id: str) -> int:
    return _number(task_id, 16)


def parse_trace_parent(text: str) -> TraceOrigin | None:
    """Return what a ``traceparent`` header says; None for one that is malformed (W3C Trace Context, 3.2)."""
    match = _TRACE_PARENT.fullmatch(text)
    if match is None or (match[4] and text.startswith("00")):
        return None
    trace, parent = int(match[1], 16), int(match[2], 16)
    return TraceOrigin(trace, parent, bool(int(match[3], 16) & SAMPLED)) if trace and parent else None


def _number(text: str, size: int) -> int:
    # No id may be zero.
    return int.from_bytes(blake2b(text.encode("utf-8", "surrogatepass"), digest_size=size).digest()) or 1


class OpenSpan(msgspec.Struct, omit_defaults=True):
    """A beginning. ``words`` and ``counts`` are the facts that its end does not repeat."""

    since_us: int
    words: dict[str, str] = {}
    counts: dict[str, int] = {}


class OpenWork(msgspec.Struct, omit_defaults=True):
    """One run's. ``segment`` is the number of its last segment, open or not."""

    segment: int = 0
    agent: OpenSpan | None = None
    """The segment that is open."""
    chat: OpenSpan | None = None
    calls: dict[str, OpenSpan] = {}
    """By tool call id."""
    asked: dict[str, OpenSpan] = {}
    """By request id."""
    notes: list[tuple[str, int, str]] = []
    """The events of the open segment: (name, time, subject)."""
    ready_us: int = 0
    queue_ms: int = 0
    worker: str = ""

    @classmethod
    def from_json(cls, state: JsonObject) -> "OpenWork":
        return msgspec.convert(state, cls)

    def as_json(self) -> JsonObject:
        kept: JsonObject = msgspec.to_builtins(self)
        return kept

    def note(self, name: str, time_us: int, about: str) -> None:
        if len(self.notes) < MAX_NOTES:
            self.notes.append((name, time_us, about))


def keep(spans: dict[str, OpenSpan], key: str, span: OpenSpan) -> None:
    """Add a beginning; of too many the oldest is forgotten."""
    spans.pop(key, None)
    while len(spans) >= MAX_OPEN:
        del spans[next(iter(spans))]
    spans[key] = span
