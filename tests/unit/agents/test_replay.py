import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from pydantic_ai.exceptions import ModelContextWindowExceededError, ModelHTTPError, ModelRateLimitError
from pydantic_ai.messages import ModelResponse, TextPart
from pydantic_ai.usage import RequestUsage

from soong.shared.agents.definition import AgentLimits, Compaction, CompactionStrategy
from soong.shared.agents.loop import run_agent
from soong.shared.agents.ports import AgentEnd, AgentTask
from soong.shared.agents.replay.replay import ReplayedRun, replay_run
from soong.shared.agents.replay.script import RunRecord, lives_of
from soong.shared.agents.requests import Reserved
from soong.shared.agents.run_models import Fallbacks, RunModel
from soong.shared.agents.runtime.prepared import ModelRules
from soong.shared.core.config import Config
from soong.shared.core.jsontext import JsonObject
from soong.shared.core.timing import SystemClock
from soong.shared.engine.runs.budgets import BudgetSpentError, Charge
from soong.shared.engine.runs.call_events import end_type, result_nodes
from soong.shared.engine.runs.events import Event, EventType, NewEvent, NewNode, Node, NodeKind
from soong.shared.engine.runs.record import Run, RunStatus, Usage
from soong.shared.engine.runs.store import CallRow, CallStatus
from soong.shared.sandbox.redact import Redactor
from soong.shared.tools.definition import RunDirs
from soong.shared.tools.pipeline import RunScope, ToolPipeline
from soong.shared.tools.ports import CallRecord, StartedCall, ToolCall
from soong.shared.tools.result import ToolResult
from tests.unit.agents.parts import ArtifactBin, RuleGate, make_identity, make_task
from tests.unit.agents.test_loop import BREAK, SCHEMA, SHOUT, WRITE, Talker, calls, final, says
from tests.waiting import others_run

pytestmark = pytest.mark.spec("DAG-11.a")

LONG = "word " * 600


class Cut(BaseException):
    """The process is killed here."""


@dataclass
class Tape:
    """Transcript and call log of one run, with all of its events; cut off at write number ``cut_at``."""

    nodes_: list[NewNode] = field(default_factory=list)
    events: list[NewEvent] = field(default_factory=list)
    rows: dict[str, CallRow] = field(default_factory=dict)
    kept: list[NewEvent] = field(default_factory=list)
    writes: int = 0
    cut_at: int = 0

    def _write(self) -> None:
        self.writes += 1
        if self.writes == self.cut_at:
            raise Cut

    async def nodes(self) -> Sequence[Node]:
        return [Node("run_1", n, n - 1, node.kind, node.payload, 0) for n, node in enumerate(self.nodes_, 1)]

    async def calls(self) -> Sequence[CallRow]:
        return list(self.rows.values())

    async def append(
        self, nodes: Sequence[NewNode], events: Sequence[NewEvent], calls: Sequence[ToolCall] = ()
    ) -> None:
        self._write()
        self.nodes_ += nodes
        self.events += [*self._taken(), *events]

    async def started(self, started: StartedCall) -> None:
        event = NewEvent(EventType.TOOL_STARTED, {"tool_call_id": started.call.id, "tool": started.call.tool})
        if not started.record.is_write:
            self.kept.append(event)
            return
        self._write()
        self.events += [*self._taken(), event]
        self.rows[started.call.id] = CallRow(
            "run_1",
            started.call.id,
            started.call.tool,
            started.record.effect_id,
            True,
            "",
            {},
            {"facts": {"shown": "it"}},
        )

    async def finished(
        self, call: ToolCall, result: ToolResult, *, duration_ms: int, record: CallRecord | None = None
    ) -> None:
        self._write()
        self.nodes_ += result_nodes(call.tool, result)
        facts: JsonObject = {"tool_call_id": call.id, "tool": call.tool, "duration_ms": duration_ms}
        self.events += [*self._taken(), NewEvent(end_type(result), facts)]
        if call.id in self.rows:
            self.rows[call.id] = replace(self.rows[call.id], status=CallStatus.ENDED)

    async def note(self, type: str, data: JsonObject) -> None:
        self.kept.append(NewEvent(type, data))

    def _taken(self) -> list[NewEvent]:
        taken, self.kept = self.kept, []
        return taken

    def begins(self, *, again: bool = False) -> None:
        self.kept = []
        self.events.append(NewEvent(EventType.RUN_RESUMED if again else EventType.RUN_STARTED))

    def ends(self, end: AgentEnd) -> None:
        self.nodes_ += end.nodes
        kind = EventType.RUN_COMPLETED if end.error is None else EventType.RUN_FAILED
        self.events += [*self._taken(), *end.events, NewEvent(kind, {"end_reason": str(end.end_reason)})]

    async def record(self) -> RunRecord:
        events = [Event("run_1", n, one.type, one.time_us, one.data) for n, one in enumerate(self.events, 1)]
        return RunRecord(RUN, await self.nodes(), events, list(self.rows.values()))


RUN = Run(
    make_identity(), RunStatus.COMPLETED, {}, 1, "", 1, "w", 0, 0, Usage(), None, created_us=0, started_us=0, ended_us=0
)


@dataclass
class Budgets:
    """Warns at the request of that number and is spent at another."""

    warns_at: int = 0
    spent_at: int = 0
    of: str = "money"
    asked: int = 0

    async def reserve(self, _charge: Charge) -> Reserved | None:
        self.asked += 1
        if self.asked == self.spent_at:
            raise BudgetSpentError("nothing is left", of=self.of)
        return Reserved(self.asked, 0.9 if self.asked == self.warns_at else 0.1)

    async def settle(self, _reserved: Reserved, _charge: Charge) -> None:
        return None


def task_of(**more: Any) -> AgentTask:
    given = make_task(tools=(SHOUT, WRITE, BREAK), **more)
    return replace(given, identity=replace(given.identity, model="openai:gpt-test"))


async def recorded(
    task: AgentTask,
    *answers: ModelResponse | Exception,
    cut_at: int = 0,
    gate: RuleGate | None = None,
    budgets: Budgets | None = None,
    fallback: Sequence[ModelResponse] = (),
) -> Tape:
    """Run an agent for real and keep what it wrote; one that is cut off goes on in a second life."""
    tape, talker = Tape(cut_at=cut_at), Talker(*answers)
    others = Talker(*fallback)

    async def opened(name: str) -> RunModel:
        return RunModel(name, others.model)

    place = RunDirs(Path("/"), Path("/"), Path("/"), (Path("/"),))
    for is_again in (False, True):
        tape.begins(again=is_again)
        tools = ToolPipeline(
            task.tools, RunScope(task.identity, 1, place), gate or RuleGate(), tape, artifacts=ArtifactBin()
        )
        try:
            end = await run_agent(
                replace(task, is_resumed=is_again),
                talker.model,
                tools,
                tape,
                tape,
                SystemClock(),
                sleep=_at_once,
                budgets=budgets,
                fallbacks=Fallbacks(("other:model",) if fallback else (), opened),
            )
        except Cut:
            answered = sum(node.kind is NodeKind.ASSISTANT for node in tape.nodes_)
            talker.answers = list(answers)[answered:]
            continue
        tape.ends(end)
        return tape
    raise AssertionError("it was cut off twice")


async def _at_once(_seconds: float) -> None:
    await others_run()


async def replayed(tape: Tape, task: AgentTask) -> ReplayedRun:
    return await replay_run(await tape.record(), task, ModelRules(Config()), Redactor())


def shout(number: int) -> ModelResponse:
    return calls(("test__shout", {"text": f"{number} {LONG}"}, f"c{number}"))


USED = RequestUsage(input_tokens=4000, output_tokens=500)
REFUSED = ModelResponse([TextPart("bro")], finish_reason="error", usage=USED)
STORIES: dict[str, tuple[AgentTask, list[ModelResponse | Exception], dict[str, Any]]] = {
    "an answer": (task_of(), [says("done")], {}),
    "calls side by side, then a write": (
        task_of(),
        [
            calls(
                ("test__shout", {"text": "a"}, "c1"),
                ("test__shout", {"text": "b"}, "c2"),
                ("test__write_it", {"text": "c"}, "c3"),
            ),
            says("done"),
        ],
        {},
    ),
    "a denied write, and what is not run after it": (
        task_of(),
        [calls(("test__write_it", {"text": "c"}, "c1"), ("test__shout", {"text": "b"}, "c2")), says("so be it")],
        {"gate": RuleGate(allows=lambda _call: False)},
    ),
    "a tool that there is not, and a wrong argument": (
        task_of(),
        [calls(("test__none", {}, "c1"), ("test__shout", {"txt": 1}, "c2")), says("done")],
        {},
    ),
    "an output that breaks its schema": (
        task_of(output_schema=SCHEMA),
        [says("no object"), final({"n": "x"}, "f1"), final({"n": 1}, "f2")],
        {},
    ),
    "the same failure again and again": (
        task_of(limits=AgentLimits(max_repeated_failures=2)),
        [calls(("test__break", {}, f"c{number}")) for number in range(4)],
        {},
    ),
    "a provider that is busy": (
        task_of(),
        [ModelHTTPError(503, "m", "busy"), ModelRateLimitError("m", "slow down", retry_after=7.0), says("done")],
        {},
    ),
    "a provider that fails for good": (task_of(), [ModelHTTPError(400, "m", "nonsense")], {}),
    "a fallback": (
        task_of(),
        [ModelHTTPError(401, "m", "no key")],
        {"fallback": [calls(("test__shout", {"text": "a"}, "c1")), says("done")]},
    ),
    "a context that is full": (
        task_of(compaction=Compaction(CompactionStrategy.SUMMARISE, window=0)),
        [shout(1), shout(2), shout(3), ModelContextWindowExceededError("m", "too long"), says("the sum"), says("done")],
        {},
    ),
    "a history that is cut without a model": (
        task_of(compaction=Compaction(CompactionStrategy.DROP_RESULTS, window=4000)),
        [shout(1), shout(2), dataclasses.replace(shout(3), usage=USED), says("done")],
        {},
    ),
    "a budget that runs low": (task_of(), [shout(1), shout(2), says("done")], {"budgets": Budgets(warns_at=2)}),
    "a budget that is spent": (task_of(), [shout(1), shout(2)], {"budgets": Budgets(spent_at=3)}),
    "an answer that is refused": (
        task_of(),
        [shout(1), REFUSED, shout(2), REFUSED, says("done")],
        {"budgets": Budgets(warns_at=3)},
    ),
    "a budget that a refused answer spends": (task_of(), [shout(1), REFUSED], {"budgets": Budgets(spent_at=3)}),
    "turns of a task that are used": (
        task_of(is_limited=True),
        [shout(1), shout(2)],
        {"budgets": Budgets(spent_at=3, of="turns")},
    ),
    "an answer that is cut": (task_of(), [ModelResponse([TextPart("one ")], finish_reason="length"), says("two")], {}),
    "as many turns as there may be": (task_of(limits=AgentLimits(max_turns=2)), [shout(1), shout(2)], {}),
}


@pytest.mark.parametrize("story", STORIES)
async def test_a_run_goes_the_same_way_again(story: str) -> None:
    task, answers, more = STORIES[story]
    tape = await recorded(task, *answers, **{name: _fresh(value) for name, value in more.items()})

    found = await replayed(tape, task)

    assert list(found.differences) == []
    assert found.turns == sum(node.kind is NodeKind.ASSISTANT for node in tape.nodes_)
    assert found.events == sum(event.type not in BESIDE for event in tape.events)


BESIDE = {
    EventType.RUN_STARTED,
    EventType.RUN_COMPLETED,
    EventType.RUN_FAILED,
    EventType.MODEL_WAITING,
    EventType.TOOL_STARTED,
    EventType.TOOL_COMPLETED,
    EventType.TOOL_FAILED,
    EventType.TOOL_DENIED,
}
"""Events that are not the loop's own."""


def _fresh(value: Any) -> Any:
    return dataclasses.replace(value) if isinstance(value, Budgets) else value


@pytest.mark.parametrize("cut_at", range(1, 9))
async def test_a_run_that_was_cut_off_is_played_life_by_life(cut_at: int) -> None:
    task = task_of()
    answers = [
        calls(("test__shout", {"text": "a"}, "c1"), ("test__write_it", {"text": "b"}, "c2")),
        calls(("test__write_it", {"text": "c"}, "c3"), ("test__shout", {"text": "d"}, "c4")),
        says("done"),
    ]
    tape = await recorded(task, *answers, cut_at=cut_at)
    record = await tape.record()

    found = await replayed(tape, task)

    assert list(found.differences) == []
    assert found.lives == len(lives_of(record)) == 2
    nodes = [node for life in lives_of(record) for node in life.nodes]
    assert nodes == list(record.nodes)


# -- a replay that goes another way
@pytest.mark.parametrize(
    ("type", "fact"),
    [
        (EventType.MODEL_FALLBACK, "why"),
        (EventType.MODEL_RESPONDED, "input_tokens"),
        (EventType.MODEL_RESPONDED, "output_tokens"),
        (EventType.MODEL_RESPONDED, "finish_reason"),
    ],
)
async def test_each_fact_of_an_event_of_the_loop_is_compared(type: EventType, fact: str) -> None:
    task, answers, more = STORIES["a fallback"]
    tape = await recorded(task, *answers, **more)
    was = next(event for event in tape.events if event.type == type)
    assert fact in was.data
    tape.events[tape.events.index(was)] = replace(was, data={**was.data, fact: "another"})

    found = await replayed(tape, task)

    assert ["event" in difference.place for difference in found.differences] == [True]


async def test_a_limit_that_is_lower_now_is_found() -> None:
    tape = await recorded(task_of(), shout(1), shout(2), shout(3), says("done"))

    found = await replayed(tape, task_of(limits=AgentLimits(max_turns=2)))

    assert found.turns == 2
    places = [difference.place.split(",")[1].split()[0] for difference in found.differences]
    assert places == ["node", "event", "call"]


async def test_a_call_that_the_record_does_not_have_waits_for_nothing() -> None:
    tape = await recorded(task_of(), calls(("test__shout", {"text": "a"}, "c1")), says("done"))
    record = await tape.record()
    without = [node for node in record.nodes if node.kind is not NodeKind.TOOL_RESULT]

    found = await replay_run(replace(record, nodes=without), task_of(), ModelRules(Config()), Redactor())

    assert found.differences
