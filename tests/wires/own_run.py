"""A run of an agent of another library over a wire, with a record that can be cut at any border."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from llmock.scenarios import Fail, Reply
from msgspec.structs import replace
from pydantic_ai.messages import ModelResponseStreamEvent

from soong.shared.agents.loop import run_agent
from soong.shared.agents.own.loop import OwnAgentLoop
from soong.shared.agents.own.registration import open_agent
from soong.shared.agents.ports import AgentEnd, AnswerView
from soong.shared.core.jsontext import Json, JsonObject
from soong.shared.core.timing import SystemClock
from soong.shared.engine.runs.events import EventType, NewEvent, NewNode, NodeKind
from soong.shared.engine.runs.store import CallRow, CallStatus
from soong.shared.engine.tasks.functions import StepContext
from soong.shared.engine.tasks.step import Outcome
from soong.shared.tools.definition import Permission, RunDirs, ToolContext, ToolDefinition
from soong.shared.tools.hooks.chain import NO_HOOKS, Hooks
from soong.shared.tools.pipeline import RunScope, ToolPipeline
from soong.shared.tools.ports import CallRecord, StartedCall, ToolCall
from soong.shared.tools.result import ToolResult
from tests.unit.agents.parts import Notebook, RuleGate, make_identity, make_task, no_pause
from tests.wires.wire import Wires

ARRIVED = "an answer has arrived"


class KilledError(Exception):
    """Stands for the end of the process: nothing that it does after this has an effect."""


@dataclass
class Ledger(Notebook):
    """A record whose process dies at its ``dies_at``-th border."""

    dies_at: int = 0
    borders: list[str] = field(default_factory=list)
    is_dead: bool = False

    def border(self, name: str) -> None:
        if not self.is_dead:
            self.borders.append(name)
            self.is_dead = len(self.borders) == self.dies_at
        if self.is_dead:
            raise KilledError(name)

    async def append(
        self, nodes: Sequence[NewNode], events: Sequence[NewEvent], calls: Sequence[ToolCall] = ()
    ) -> None:
        self.border("before a record")
        await super().append(nodes, events, calls)
        self.border("after a record")

    async def started(self, started: StartedCall) -> None:
        self.border("before a call")
        await super().started(started)
        call, record = started.call, started.record
        self.calls_.append(
            CallRow("run_1", call.id, call.tool, f"run_1/{call.id}", record.is_write, "", {}, record.facts)
        )
        self.border("after a call has begun")

    async def finished(
        self, call: ToolCall, result: ToolResult, *, duration_ms: int, record: CallRecord | None = None
    ) -> None:
        self.border("before a result")
        await super().finished(call, result, duration_ms=duration_ms, record=record)
        ended = [one for one in self.calls_ if one.tool_call_id != call.id]
        ended += [replace(one, status=CallStatus.ENDED) for one in self.calls_ if one.tool_call_id == call.id]
        self.calls_ = ended
        self.border("after a result")

    async def note(self, type: str, data: JsonObject) -> None:
        if self.is_dead:
            raise KilledError(type)
        await super().note(type, data)

    @property
    def answers(self) -> int:
        return sum(node.kind is NodeKind.ASSISTANT for node in self.written)

    @property
    def results(self) -> list[tuple[str, Json]]:
        """The results of calls, each with its tool, in the order of their tools."""
        nodes = [node.payload for node in self.written if node.kind is NodeKind.TOOL_RESULT]
        return sorted(((str(one["tool"]), str(one["content"])) for one in nodes), key=str)

    def resumed(self) -> "Ledger":
        """Return the record as the next process finds it."""
        return Ledger(written=[*self.written], calls_=[*self.calls_])


@dataclass
class BorderView(AnswerView):
    """Counts the beginning and the arrival of each answer among the borders, and keeps its pieces."""

    ledger: Ledger
    pieces: list[ModelResponseStreamEvent] = field(default_factory=list)

    def begin(self, turn: int) -> None:
        self.ledger.border(f"before request {turn}")

    def take(self, event: ModelResponseStreamEvent) -> None:
        self.pieces.append(event)

    def complete(self) -> None:
        self.ledger.border(ARRIVED)


@dataclass
class World:
    """What the own tools of the agent of a test touch, and how often."""

    ledger: Ledger = field(default_factory=Ledger)
    owners: list[str] = field(default_factory=list)
    issues: list[str] = field(default_factory=list)
    opened: list[str] = field(default_factory=list)

    def begin(self, ledger: Ledger | None = None) -> None:
        """Be a new one, under the name that the tools know."""
        self.ledger, self.owners, self.issues, self.opened = ledger or Ledger(), [], [], []


async def _read(_context: ToolContext, call_input: JsonObject) -> Json:
    return f"the text of {call_input['path']}"


READ = ToolDefinition(
    "code.read_file",
    "Read a file.",
    {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]},
    _read,
    Permission.READONLY,
)


@dataclass
class OwnRun:
    """Runs the agent that is registered as ``name``; ``replies`` are what its model answers, in order."""

    wires: Wires
    name: str
    replies: Sequence[Reply]
    gate: RuleGate = field(default_factory=RuleGate)
    hooks: Hooks = NO_HOOKS
    tools: tuple[ToolDefinition, ...] = ()
    overrides: dict[str, Any] = field(default_factory=dict)
    more: dict[str, Any] = field(default_factory=dict)
    view: Callable[[Ledger], AnswerView] = BorderView

    async def __call__(self, ledger: Ledger | None = None, model: Any = None) -> AgentEnd:
        """Run it to its end, from the record that there is; the server forgets what it was asked before."""
        ledger = ledger or Ledger()
        self.wires.server.state.reset()
        self.wires.will(*self.replies[ledger.answers :])
        identity = replace(make_identity(), definition=f"python:{self.name}", model="")
        given = {"inputs": {"prompt": "Look at a.py"}, "is_resumed": bool(ledger.written), **self.overrides}
        agent = open_agent(self.name, StepContext(identity), model)
        task = make_task(identity=replace(identity, model=agent.model_name), tools=self.tools, **given)
        scope = RunScope(identity, 1, RunDirs(Path("/p"), Path("/p"), Path("/r")))
        pipeline = ToolPipeline(task.tools, scope, self.gate, ledger, hooks=self.hooks)
        async with agent.model:  # its connections are of this test's loop
            return await run_agent(
                task,
                agent.model,
                pipeline,
                ledger,
                ledger,
                SystemClock(),
                sleep=no_pause,
                view=self.view(ledger),
                loop_type=OwnAgentLoop,
                **self.more,
            )


async def killed_at_every_border(own: OwnRun, world: World, requests: int) -> int:
    """Kill the agent at each border of its run: it goes on, and nothing is done or charged twice. Return how many."""
    world.ledger = whole = Ledger()
    end = await own(whole)

    for place, border in enumerate(whole.borders, 1):
        world.begin(dying := Ledger(dies_at=place))
        own.gate = RuleGate()
        with pytest.raises(KilledError):
            await own(dying)
        sent = len(own.wires.requests)
        is_cut_write = any(row.is_write and row.status is CallStatus.STARTED for row in dying.calls_)
        world.ledger = again = dying.resumed()

        last = await own(again)

        # An answer that had arrived and was not recorded yet is asked for again, and counted once.
        is_lost = border == ARRIVED or (border == "before a record" and whole.borders[place - 2] == ARRIVED)
        asked = (sent, len(own.wires.requests))
        assert asked == (dying.answers + is_lost, requests - dying.answers), (place, border)
        assert (last.output, last.usage.requests) == (end.output, requests), (place, border)
        if is_cut_write:  # it may have happened: it is not repeated, and the step says so
            assert world.issues in ([], ["x is unused"]), (place, border)
            assert [one["type"] for one in last.unknown_effects] == ["unknown_after_crash"], (place, border)
        else:
            assert (world.issues, again.results) == (["x is unused"], whole.results), (place, border)
            assert (last.outcome, last.usage) == (Outcome.CLEAN, end.usage), (place, border)
    return len(whole.borders)


async def denied_with_a_busy_provider(own: OwnRun, world: World) -> None:
    """Deny its write while its provider answers twice that it is busy: the agent is told, and goes on."""
    own.gate = RuleGate(allows=lambda call: False)
    own.replies = (Fail(503, times=2), *own.replies)  # type: ignore[arg-type]

    end = await own(ledger := Ledger())

    assert (end.outcome, world.issues) == (Outcome.PARTIAL, [])
    assert ledger.events.count(EventType.MODEL_FAILED) == 2
    assert "permission_denied" in str(own.wires.requests[-1].body)
