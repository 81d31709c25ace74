"""Plays a run again from its record: the real loop, with no model, no tool and nobody to ask (DAG-11).

The loop decides everything again from what it was given then: which calls it makes, in which order and groups, what it
refuses itself, when it asks again, makes its history shorter, falls back or ends. It departs from the record where the
program, the agent's definition or the configuration has changed what a run does.
"""

import asyncio
import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import zip_longest
from typing import Final

from msgspec.structs import replace

from soong.shared.agents.loop import run_agent
from soong.shared.agents.messages import is_of_a_call
from soong.shared.agents.ports import AgentEnd, AgentTask
from soong.shared.agents.replay.lives import CALL_ENDS, Life, RunRecord, call_of, lives_of
from soong.shared.agents.replay.recorded import RecordedCalls, ReplayedLog
from soong.shared.agents.replay.script import ModelScript, RecordedBudgets, RecordedModel, fallbacks_of
from soong.shared.agents.runtime.agent_task import ModelRules
from soong.shared.agents.runtime.without_secrets import clean_event, clean_node
from soong.shared.core.clock import SystemClock
from soong.shared.core.jsontext import JsonObject
from soong.shared.core.value import Value
from soong.shared.engine.runs.events import Event, EventType, NewEvent, NewNode, Node, NodeKind
from soong.shared.sandbox.redact import Redactor

_ROUNDS: Final = 100
"""Of the event loop, after which everything that the record can answer at once has been answered."""

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
_PASSING_FACTS: Final = frozenset({"duration_ms", "cost_usd"})
_MAX_SHOWN: Final = 160


class Difference(Value):
    """Where a replay departs from the record. ``what`` is a kind of node or a type of event; None: there is none."""

    place: str
    recorded: str | None
    replayed: str | None

    def __str__(self) -> str:
        return f"{self.place}: recorded {self.recorded or 'nothing'}, replayed {self.replayed or 'nothing'}"


class ReplayedRun(Value):
    """What a replay found. Without differences the run would be the same again."""

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
            _take_end(running.result(), log)
    finally:
        log.is_closed = True
        stopped.cancel()
        running.cancel()
        with suppress(asyncio.CancelledError):
            await asyncio.gather(running, stopped, return_exceptions=True)
    return log


def _take_end(end: AgentEnd, log: ReplayedLog) -> None:
    log.nodes_ += end.nodes
    log.events += end.events


async def _no_pause(_seconds: float) -> None:
    """What was waited for then is not waited for again."""


def differences(life: Life, log: ReplayedLog, number: int) -> list[Difference]:
    """Return where life ``number`` of a run was another one when it was replayed; of each log the first place."""
    found = (
        first_difference(f"life {number}, node", _nodes(life.nodes), _nodes(log.nodes_), is_whole=life.is_whole),
        first_difference(f"life {number}, event", _events(life.events), _events(log.events), is_whole=life.is_whole),
        first_difference(f"life {number}, call", _recorded_ends(life), _replayed_ends(log), is_whole=life.is_whole),
    )
    return [difference for difference in found if difference is not None]


def first_difference(
    place: str, recorded: Sequence[str], replayed: Sequence[str], *, is_whole: bool = True
) -> Difference | None:
    """Return the first place where two lists depart; one that is not ``is_whole`` says nothing after its end."""
    for number, (was, now) in enumerate(zip_longest(recorded, replayed), 1):
        if was is None and not is_whole:
            return None  # the process stopped before it had written this
        if was != now:
            return Difference(f"{place} {number}", _cut(was, now), _cut(now, was))
    return None


def _nodes(nodes: Sequence[Node | NewNode]) -> list[str]:
    return [f"{node.kind} {_text(_said(node))}" for node in _in_order(nodes)]


def _text(value: JsonObject) -> str:
    """Return JSON with its keys in order: rows keep an object's values, not its order."""
    return json.dumps(value, ensure_ascii=False, sort_keys=True, separators=(",", ":"))


def _said(node: Node | NewNode) -> JsonObject:
    """Return what a node says, without the names of the events that stand for it."""
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
    """Return what an event says, without what is another each time. Calls that end side by side have no order."""
    facts = {name: value for name, value in event.data.items() if name not in _PASSING_FACTS}
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
