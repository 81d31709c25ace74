"""Plays a run again from its record: the real loop, with no model, no tool and nobody to ask (DAG-11).

The loop decides everything again from what it was given then: which calls it makes, in which order and groups, what it
refuses itself, when it asks again, makes its history shorter, falls back or ends. It departs from the record where the
program, the agent's definition or the configuration has changed what a run does.
"""

import asyncio
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Final

from msgspec.structs import replace

from soong.shared.agents.loop import run_agent
from soong.shared.agents.messages import is_of_a_call, results_of
from soong.shared.agents.ports import AgentTask
from soong.shared.agents.replay.script import (
    CALL_ENDS,
    Life,
    ModelScript,
    RecordedBudgets,
    RecordedModel,
    RunRecord,
    call_of,
    fallbacks_of,
    lives_of,
)
from soong.shared.agents.runtime.call_log import clean_event, clean_node
from soong.shared.agents.runtime.prepared import ModelRules
from soong.shared.core.jsontext import JsonObject
from soong.shared.core.timing import SystemClock
from soong.shared.core.value import Value
from soong.shared.engine.runs.call_events import end_type, result_nodes
from soong.shared.engine.runs.events import Event, EventType, NewEvent, NewNode, Node, NodeKind
from soong.shared.engine.runs.store import CallRow, CallStatus
from soong.shared.sandbox.redact import Redactor
from soong.shared.tools.definition import ToolDefinition
from soong.shared.tools.ports import CallRecord, StartedCall, ToolCall
from soong.shared.tools.result import ErrorType, ToolFailure, ToolResult
from soong.shared.tools.results.normalize import refusal

_ROUNDS: Final = 100
"""Rounds of the event loop after which the record has answered everything that it can answer at once."""

OF_THE_LOOP: Final = frozenset(
    {
        EventType.MODEL_REQUESTED,
        EventType.MODEL_RESPONDED,
        EventType.MODEL_FAILED,
        EventType.MODEL_FALLBACK,
        EventType.BUDGET_WARNED,
        EventType.CONTEXT_COMPACTED,
        EventType.TOOL_QUEUED,
        EventType.TOOL_YIELDED,
    }
)
_MAX_SHOWN: Final = 160


class Difference(Value):
    """The place where a replay departs from the record, and the node or event of each; None: there is none."""

    place: str
    recorded: str | None
    replayed: str | None

    def __str__(self) -> str:
        return f"{self.place}: recorded {self.recorded or 'nothing'}, replayed {self.replayed or 'nothing'}"


class ReplayedRun(Value):
    """The result of a replay. Without differences the run would be the same again."""

    lives: int
    turns: int
    calls: int
    events: int
    differences: Sequence[Difference]


async def replay_run(record: RunRecord, task: AgentTask, rules: ModelRules, redactor: Redactor) -> ReplayedRun:
    """Play each life of a run from its record. ``task`` is the run's work as it would be given to a worker now."""
    found: list[Difference] = []
    turns = calls = events = 0
    lives = lives_of(record)
    for number, life in enumerate(lives, 1):
        log = await _played(record, life, task, rules)
        log.nodes_ = [clean_node(node, redactor) for node in log.nodes_]
        log.events = [clean_event(event, redactor) for event in log.events]
        found += differences(life, log, number)
        turns += sum(node.kind == "assistant" for node in log.nodes_)
        calls += len(log.ends)
        events += len(log.events)
    return ReplayedRun(len(lives), turns, calls, events, found)


@dataclass(slots=True)
class ReplayedLog:
    """The loop's records of one life: its nodes, its events and the ends of its calls, in order.

    Serves as the transcript and as the log of calls. ``is_closed``: the record of the life stops here, and what the
    loop writes while it is cancelled belongs to no record.
    """

    record: RunRecord
    life: Life
    nodes_: list[NewNode] = field(default_factory=list)
    events: list[NewEvent] = field(default_factory=list)
    ends: dict[str, EventType] = field(default_factory=dict)
    is_closed: bool = False

    async def nodes(self) -> Sequence[Node]:
        own = [
            Node(self.record.run.id, number, number - 1, node.kind, node.payload, 0)
            for number, node in enumerate(self.nodes_, len(self.life.before) + 1)
        ]
        return [*self.life.before, *own]

    async def calls(self) -> Sequence[CallRow]:
        """Return the calls as they stood when the life began."""
        begun, ended = set[str](), set[str]()
        for event in self.record.events:
            if event is self.life.events[0]:
                break
            if event.type == EventType.TOOL_STARTED:
                begun.add(call_of(event))
            elif event.type in CALL_ENDS:
                ended.add(call_of(event))
        return [
            replace(row, status=CallStatus.ENDED if row.tool_call_id in ended else CallStatus.STARTED)
            for row in self.record.calls
            if row.tool_call_id in begun
        ]

    async def append(
        self, nodes: Sequence[NewNode], events: Sequence[NewEvent], calls: Sequence[ToolCall] = ()
    ) -> None:
        del calls
        if not self.is_closed:
            self.nodes_ += nodes
            self.events += events

    async def started(self, started: StartedCall) -> None:
        """No call is made, so none starts."""

    async def finished(
        self, call: ToolCall, result: ToolResult, *, duration_ms: int, record: CallRecord | None = None
    ) -> None:
        del duration_ms, record
        if not self.is_closed:
            self.nodes_ += result_nodes(call.tool, result)
            self.ends[call.id] = end_type(result)

    async def note(self, type: str, data: JsonObject) -> None:
        if not self.is_closed:
            self.events.append(NewEvent(type, data))


async def _played(record: RunRecord, life: Life, task: AgentTask, rules: ModelRules) -> ReplayedLog:
    """Run the loop until it ends, or has done all that the record of the life has an answer to."""
    script, log = ModelScript.of(life), ReplayedLog(record, life)
    model = RecordedModel(task.identity.model, script)
    running = asyncio.ensure_future(
        run_agent(
            replace(task, is_streamed=False, is_resumed=bool(life.before)),
            model,
            RecordedCalls.of(task.tools, log, script),
            log,
            log,
            SystemClock(),
            sleep=_no_pause,
            budgets=RecordedBudgets(script),
            fallbacks=fallbacks_of(life, script, rules),
        )
    )
    stopped = asyncio.ensure_future(script.stopped.wait())
    try:
        await asyncio.wait((running, stopped), return_when=asyncio.FIRST_COMPLETED)
        for _ in range(_ROUNDS):
            await asyncio.sleep(0)
        if running.done():
            log.nodes_ += running.result().nodes
            log.events += running.result().events
    finally:
        log.is_closed = True
        stopped.cancel()
        running.cancel()
        with suppress(asyncio.CancelledError):
            await asyncio.gather(running, stopped, return_exceptions=True)
    return log


async def _no_pause(_seconds: float) -> None:
    """A recorded pause is not waited for again."""


def differences(life: Life, log: ReplayedLog, number: int) -> list[Difference]:
    """Return the first place in each log where the replay of life ``number`` departs from the record."""
    found = (
        first_difference(f"life {number}, node", _nodes(life.nodes), _nodes(log.nodes_), is_whole=life.is_whole),
        first_difference(f"life {number}, event", _events(life.events), _events(log.events), is_whole=life.is_whole),
        first_difference(f"life {number}, call", _recorded_ends(life), _replayed_ends(log), is_whole=life.is_whole),
    )
    return [difference for difference in found if difference is not None]


def first_difference(
    place: str, recorded: Sequence[str], replayed: Sequence[str], *, is_whole: bool = True
) -> Difference | None:
    """Return the first place where two lists depart; a list without ``is_whole`` proves nothing after its end."""
    for number, (was, now) in enumerate(zip_longest(recorded, replayed), 1):
        if was is None and not is_whole:
            return None  # the process stopped before it had written this
        if was != now:
            return Difference(f"{place} {number}", _cut(was, now), _cut(now, was))
    return None


def _nodes(nodes: Sequence[Node | NewNode]) -> list[str]:
    told = [node for node in nodes if node.kind is not NodeKind.REFUSED]  # a replay is billed for nothing
    return [f"{node.kind} {_text(_said(node))}" for node in _in_order(told)]


def _text(value: JsonObject) -> str:
    """Return JSON with its keys in order: rows keep an object's values, not its order."""
    return json.dumps(value, ensure_ascii=False, sort_keys=True, separators=(",", ":"))


def _said(node: Node | NewNode) -> JsonObject:
    """Return a node's payload, without the names of the events that belong to it."""
    return {name: value for name, value in node.payload.items() if name != "evidence"}


def _in_order(nodes: Sequence[Node | NewNode]) -> Iterator[Node | NewNode]:
    """Yield the nodes, those of neighbouring calls in the order of their calls' ids."""
    together: list[Node | NewNode] = []
    for node in nodes:
        if is_of_a_call(node):
            together.append(node)
            continue
        yield from _by_call(together)
        together = []
        yield node
    yield from _by_call(together)


def _by_call(nodes: Iterable[Node | NewNode]) -> list[Node | NewNode]:
    return sorted(
        nodes, key=lambda node: (str(node.payload.get("tool_call_id")), node.kind is not NodeKind.TOOL_RESULT)
    )


def _events(events: Sequence[Event | NewEvent]) -> list[str]:
    return [f"{event.type} {_text(_facts(event))}" for event in events if event.type in OF_THE_LOOP and _is_own(event)]


def _is_own(event: Event | NewEvent) -> bool:
    """Say whether the loop itself gives rise to it: that a fallback could not be opened is of its process."""
    return event.type != EventType.MODEL_FAILED or bool(event.data.get("attempt"))


def _facts(event: Event | NewEvent) -> JsonObject:
    """Return an event's content, without parts that always differ. Calls that end side by side have no order."""
    facts = {name: value for name, value in event.data.items() if name not in {"duration_ms", "cost_usd"}}
    calls = facts.get("calls")
    if event.type == EventType.TOOL_YIELDED and isinstance(calls, list | tuple):
        facts["calls"] = sorted(map(str, calls))
    return facts


def _recorded_ends(life: Life) -> list[str]:
    answered = {str(node.payload.get("tool_call_id")) for node in life.nodes if node.kind is NodeKind.TOOL_RESULT}
    ends = [event for event in life.events if event.type in CALL_ENDS and call_of(event) in answered]
    return sorted(f"{call_of(event)} {event.type}" for event in ends)


def _replayed_ends(log: ReplayedLog) -> list[str]:
    return sorted(f"{call_id} {end}" for call_id, end in log.ends.items())


def _cut(text: str | None, other: str | None) -> str | None:
    """Return a text for people: from shortly before the place where it departs from the other one."""
    if text is None:
        return None
    same = next((place for place, pair in enumerate(zip(text, other or "", strict=False)) if len(set(pair)) > 1), 0)
    start = max(0, same - _MAX_SHOWN // 2)
    shown = text[start : start + _MAX_SHOWN]
    return f"{text.split(' ', 1)[0]} …{shown}" if start else shown


@dataclass(slots=True)
class RecordedCalls:
    """An executor that calls nothing. A call without an end in this life waits, as it did, for the life to stop."""

    tools: Mapping[str, ToolDefinition]
    aliases: Mapping[str, str]
    results: Mapping[str, ToolResult]
    log: ReplayedLog
    script: ModelScript

    @classmethod
    def of(cls, tools: Sequence[ToolDefinition], log: ReplayedLog, script: ModelScript) -> "RecordedCalls":
        aliases = {alias: tool.name for tool in tools for alias in tool.aliases}
        ended = log.life.ended_calls
        results = {one.tool_call_id: one for one in results_of(log.life.nodes) if one.tool_call_id in ended}
        return cls({tool.name: tool for tool in tools}, aliases, results, log, script)

    def resolve(self, name: str) -> ToolDefinition | None:
        return self.tools.get(self.aliases.get(name, name))

    async def execute(self, call: ToolCall) -> ToolResult:
        result = self.results.get(call.id)
        if result is None:
            await self.script.stop()
            raise AssertionError("the wait for the end of a life does not end")
        await self.log.finished(call, result, duration_ms=0)
        return result

    async def refuse(self, call: ToolCall, type: ErrorType, message: str) -> ToolResult:
        result = refusal(call.id, ToolFailure(type, message))
        await self.log.finished(call, result, duration_ms=0)
        return result
