"""From the log of a run to its spans. Pure: events in, spans out, and the state that the next events need.

A span is made when the log has the end of its work, in any process that reads it. So a worker that is killed loses
none, and a run that waits for a person for hours is several short spans of its agent, one after another, each linked to
the one before.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar, Final, Literal

from soong.orchestrator.event_log.follower import MAX_WORD, MICRO, count, microusd, provider_of, word
from soong.orchestrator.telemetry import spans as names
from soong.orchestrator.telemetry.spans import (
    Attribute,
    Attributes,
    OpenSpan,
    OpenWork,
    Span,
    SpanEvent,
    TraceOrigin,
    keep,
    span_id,
)
from soong.shared.core.jsontext import dump, inert
from soong.shared.engine.runs.events import Event, EventType
from soong.shared.engine.tasks.event_feed import FeedRun
from soong.shared.engine.tasks.spec import TaskKind

MAX_CONTENT: Final = 8000
LOST: Final = "worker_lost"
_ENDS: Final[Mapping[str, str]] = {
    EventType.RUN_PARKED: "parked",
    EventType.STEP_RELEASED: "released",
    EventType.RUN_COMPLETED: "completed",
    EventType.RUN_FAILED: "failed",
    EventType.RUN_CANCELLED: "cancelled",
}
_SUMS: Final = {
    "input_tokens": names.INPUT_TOKENS,
    "output_tokens": names.OUTPUT_TOKENS,
    "cached_tokens": names.CACHED_TOKENS,
}


@dataclass(slots=True)
class RunSpans:
    """One run's. ``captures_content``: spans have the inputs of calls and summaries of their results."""

    run: FeedRun
    origin: TraceOrigin
    work: OpenWork
    captures_content: bool = False

    def take(self, event: Event) -> Iterator[Span]:
        read = self._READERS.get(event.type)
        if read is not None:
            yield from read(self, event) or ()

    @property
    def _is_workflow(self) -> bool:
        return self.run.is_root and self.run.task_kind is TaskKind.PLAN

    # -- segments of the agent
    def _task_continues(self, event: Event) -> None:
        if self._is_workflow and self.work.agent is None:
            self._begin(event)

    def _task_paused(self, event: Event) -> Iterator[Span]:
        if self._is_workflow:
            yield from self._end(event, "paused")

    def _ready(self, event: Event) -> None:
        self.work.ready_us = event.time_us

    def _claimed(self, event: Event) -> None:
        if self.work.ready_us:
            self.work.queue_ms = max(0, event.time_us - self.work.ready_us) // 1000
        self.work.worker, self.work.ready_us = word(event.data, "worker"), 0

    def _started(self, event: Event) -> Iterator[Span]:
        # Its former holder ended without a word: an agent of an owner that died.
        yield from self._lost(event)
        self._begin(event)

    def _begin(self, event: Event) -> None:
        self.work.segment += 1
        self.work.agent = OpenSpan(event.time_us, counts={"fence": count(event.data, "fence")})
        self.work.notes = []

    def _lost(self, event: Event) -> Iterator[Span]:
        return self._end(event, "lost", LOST, word(event.data, "reason"))

    def _over(self, event: Event) -> Iterator[Span]:
        how = _ENDS[event.type]
        error = {"failed": word(event.data, "end_reason") or how, "cancelled": how}.get(how, "")
        return self._end(event, how, error)

    def _end(self, event: Event, how: str, error: str = "", message: str = "") -> Iterator[Span]:
        if self.work.chat is not None:
            yield self._chat(event, error or how, "nobody waits for its answer any more")
        agent = self.work.agent
        if agent is None:
            return
        identity = self.run.identity
        title = self.run.task_title if self._is_workflow else identity.definition or identity.step_title
        label = inert(title[:MAX_WORD])
        parent = self.run.identity.parent_run_id
        yield self._span(
            names.INVOKE_WORKFLOW if self._is_workflow else names.INVOKE_AGENT,
            label,
            agent.since_us,
            event,
            {
                names.WORKFLOW_NAME if self._is_workflow else names.AGENT_NAME: label,
                names.SEGMENT_END: how,
                names.SEGMENT: self.work.segment,
                names.ATTEMPT: self.run.attempt,
            },
            self._agent_attributes(agent),
            id=span_id(identity.run_id, "segment", self.work.segment),
            parent_id=span_id(parent, "segment", 1) if parent else self.origin.parent_id,
            links=self._before(),
            events=tuple(SpanEvent(name, at, {"about": about} if about else {}) for name, at, about in self.work.notes),
            error=error,
            message=message,
        )
        self.work.agent, self.work.notes, self.work.queue_ms = None, [], 0

    def _agent_attributes(self, agent: OpenSpan) -> Attributes:
        identity = self.run.identity
        return {
            names.AGENT_ID: identity.agent_id,
            names.PARENT_RUN: identity.parent_run_id,
            names.STEP: identity.step_key.removeprefix(f"{identity.task_id}/"),
            names.STEP_TITLE: inert(identity.step_title[:MAX_WORD]),
            names.FENCE: agent.counts.get("fence", 0),
            names.WORKER: self.work.worker,
            names.QUEUED: self.work.queue_ms,
            names.INPUT_TOKENS: agent.counts.get("input_tokens", 0),
            names.OUTPUT_TOKENS: agent.counts.get("output_tokens", 0),
            names.CACHED_TOKENS: agent.counts.get("cached_tokens", 0),
        }

    def _before(self) -> tuple[int, ...]:
        """Return what a segment continues: the one before, or the attempt before."""
        if self.work.segment > 1:
            return (span_id(self.run.identity.run_id, "segment", self.work.segment - 1),)
        return (span_id(self.run.retry_of, "segment", 1),) if self.run.retry_of else ()

    # -- requests of a model
    def _requested(self, event: Event) -> Iterator[Span]:
        if self.work.chat is not None:
            yield self._chat(event, LOST, "it was sent again")
        words = {"model": word(event.data, "model")}
        self.work.chat = OpenSpan(event.time_us, words, {"turn": count(event.data, "turn")})

    def _responded(self, event: Event) -> Iterator[Span]:
        yield self._chat(event)

    def _model_failed(self, event: Event) -> Iterator[Span]:
        status = count(event.data, "status")
        if event.data.get("is_retried") is True:
            self.work.note("model_failed", event.time_us, str(status or word(event.data, "message")))
        elif self.work.chat is not None and count(event.data, "attempt"):
            error = str(status) if status else "provider_failed"
            yield self._chat(event, error, word(event.data, "message", 1000))

    def _fell_back(self, event: Event) -> None:
        to = word(event.data, "to")
        self.work.note("model_fallback", event.time_us, to)
        if self.work.chat is None:  # the same question goes to another model
            self.work.chat = OpenSpan(event.time_us, {"model": to}, {"turn": count(event.data, "turn")})

    def _chat(self, event: Event, error: str = "", message: str = "") -> Span:
        data = event.data
        begun = self.work.chat or OpenSpan(max(0, event.time_us - count(data, "duration_ms") * 1000))
        self.work.chat = None
        model, answered = begun.words.get("model", ""), word(data, "model")
        label = model or answered or self.run.identity.model
        told: dict[str, Attribute] = {names.REQUEST_MODEL: label}
        is_answer = event.type == EventType.MODEL_RESPONDED
        optional: Attributes = {
            names.PROVIDER: provider_of(answered or label),
            names.TURN: begun.counts.get("turn", 0) or count(data, "turn"),
            names.STATUS_CODE: count(data, "status"),
            names.RESPONSE_MODEL: answered if is_answer else "",
            names.RESPONSE_ID: word(data, "response_id") if is_answer else "",
            names.FINISH_REASONS: (reason,) if is_answer and (reason := word(data, "finish_reason")) else "",
        }
        if is_answer:
            for name, shown in _SUMS.items():
                told[shown] = number = count(data, name)
                if self.work.agent is not None:
                    self.work.agent.counts[name] = self.work.agent.counts.get(name, 0) + number
            if (cost := microusd(data)) is not None:
                told[names.COST_USD] = cost / MICRO
        return self._span(
            names.CHAT, label, begun.since_us, event, told, optional, kind="client", error=error, message=message
        )

    # -- tool calls
    def _tool_started(self, event: Event) -> None:
        words = {"author": word(event.data, "author"), "rule": word(event.data, "rule")}
        if self.captures_content:
            value = event.data.get("input")
            words["input"] = dump(value)[:MAX_CONTENT] if isinstance(value, dict) else ""
        keep(self.work.calls, word(event.data, "tool_call_id"), OpenSpan(event.time_us, words))

    def _tool_ended(self, event: Event) -> Iterator[Span]:
        data = event.data
        call, tool = word(data, "tool_call_id"), word(data, "tool")
        since_us = max(0, event.time_us - count(data, "duration_ms") * 1000)
        begun = self.work.calls.pop(call, None) or OpenSpan(since_us)
        error = "" if event.type == EventType.TOOL_COMPLETED else word(data, "error") or str(event.type)
        optional: Attributes = {
            names.AUTHOR: begun.words.get("author", ""),
            names.RULE: begun.words.get("rule", ""),
            names.TOOL_ARGUMENTS: begun.words.get("input", ""),
            names.TOOL_RESULT: word(data, "summary", MAX_CONTENT) if self.captures_content else "",
        }
        yield self._span(
            names.EXECUTE_TOOL,
            tool,
            begun.since_us,
            event,
            {names.TOOL_NAME: tool, names.TOOL_CALL: call, names.TOOL_TYPE: "function"},
            optional,
            error=error,
            message=word(data, "message", 1000) if error and self.captures_content else "",
        )

    # -- consent
    def _asked(self, event: Event) -> None:
        told = ("tool_call_id", "tool", "risk", "rule")
        words = {name: value for name in told if (value := word(event.data, name))}
        keep(self.work.asked, word(event.data, "request_id"), OpenSpan(event.time_us, words))

    def _decided(self, event: Event) -> Iterator[Span]:
        request = word(event.data, "request_id")
        begun = self.work.asked.pop(request, None)
        if begun is None:  # the policy decided by itself
            return
        tool = begun.words.get("tool", "")
        optional: Attributes = {
            names.TOOL_CALL: begun.words.get("tool_call_id", ""),
            names.RISK: begun.words.get("risk", ""),
            names.CHOICE: word(event.data, "choice"),
            names.AUTHOR: word(event.data, "author"),
            names.RULE: word(event.data, "rule") or begun.words.get("rule", ""),
        }
        yield self._span(
            names.PERMISSION,
            tool,
            begun.since_us,
            event,
            {names.TOOL_NAME: tool, names.REQUEST: request},
            optional,
            error=word(event.data, "error") or ("withdrawn" if event.type == EventType.PERMISSION_WITHDRAWN else ""),
        )

    def _noted(self, event: Event) -> None:
        self.work.note(event.type, event.time_us, word(event.data, "what"))

    def _span(
        self,
        operation: str,
        label: str,
        start_us: int,
        event: Event,
        attributes: Attributes,
        optional: Attributes,
        *,
        id: int | None = None,
        parent_id: int | None = None,
        kind: Literal["internal", "client"] = "internal",
        links: tuple[int, ...] = (),
        events: tuple[SpanEvent, ...] = (),
        error: str = "",
        message: str = "",
    ) -> Span:
        """Return a span that ends with an event. Those of the ``optional`` attributes that are empty are left out."""
        identity, end_us = self.run.identity, event.time_us
        told: dict[str, Attribute] = {
            names.OPERATION: operation,
            names.CONVERSATION: identity.session_id,
            names.TASK: identity.task_id,
            names.RUN: identity.run_id,
            **attributes,
            **{name: value for name, value in optional.items() if value},
        }
        if error:
            told[names.ERROR_TYPE] = error
        segment = max(1, self.work.segment)
        return Span(
            trace_id=self.origin.trace_id,
            id=span_id(identity.run_id, operation, event.seq) if id is None else id,
            parent_id=span_id(identity.run_id, "segment", segment) if parent_id is None else parent_id,
            name=f"{operation} {label}",
            # A clock of another machine may be behind: no span ends before it begins.
            start_us=min(start_us, end_us) if start_us else end_us,
            end_us=end_us,
            attributes=told,
            kind=kind,
            links=links,
            events=events,
            error=error,
            message=message,
        )

    _READERS: ClassVar[Mapping[str, Callable[["RunSpans", Event], Iterator[Span] | None]]] = {
        EventType.TASK_CREATED: _task_continues,
        EventType.TASK_RESUMED: _task_continues,
        EventType.TASK_PAUSED: _task_paused,
        EventType.STEP_READY: _ready,
        EventType.STEP_UNPARKED: _ready,
        EventType.STEP_CLAIMED: _claimed,
        EventType.RUN_STARTED: _started,
        EventType.RUN_RESUMED: _started,
        EventType.STEP_LEASE_EXPIRED: _lost,
        **dict.fromkeys(_ENDS, _over),
        EventType.MODEL_REQUESTED: _requested,
        EventType.MODEL_RESPONDED: _responded,
        EventType.MODEL_FAILED: _model_failed,
        EventType.MODEL_FALLBACK: _fell_back,
        EventType.TOOL_STARTED: _tool_started,
        EventType.TOOL_COMPLETED: _tool_ended,
        EventType.TOOL_FAILED: _tool_ended,
        EventType.TOOL_DENIED: _tool_ended,
        EventType.PERMISSION_REQUESTED: _asked,
        EventType.PERMISSION_DECIDED: _decided,
        EventType.PERMISSION_WITHDRAWN: _decided,
        EventType.BUDGET_WARNED: _noted,
        EventType.CONTEXT_COMPACTED: _noted,
        EventType.SECURITY: _noted,
    }
