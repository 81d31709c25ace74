"""What the rows keep of a task is enough to play it again with no model, no tool and nobody to ask.

DAG-11 asks for the playing itself, which is not here; this holds what it needs to be recorded.
"""

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import pytest
from pydantic_ai.messages import ModelMessage, ModelMessagesTypeAdapter, ModelResponse
from pydantic_ai.models import Model
from pydantic_ai.settings import ModelSettings

from soong.orchestrator.client.catalog import Catalogue
from soong.shared.agents.loop import run_agent
from soong.shared.agents.ports import AgentEnd, AgentTask
from soong.shared.core.clock import SystemClock
from soong.shared.core.jsontext import JsonObject
from soong.shared.engine.runs.events import Event, Node, NodeKind
from soong.shared.engine.runs.record import Run
from soong.shared.engine.runs.store import CallRow
from soong.shared.engine.sessions.session import Session
from soong.shared.engine.tasks.expansion import expand_map, new_task
from soong.shared.engine.tasks.kinds import StepKind
from soong.shared.engine.tasks.plan.reader import plan_from_json
from soong.shared.engine.tasks.status import TaskStatus
from soong.shared.engine.tasks.step import Step, StepResult, Task
from soong.shared.permissions.request import Choice, PermissionDecision, PermissionRequest
from soong.shared.tools.definition import ToolDefinition
from soong.shared.tools.ports import ToolCall
from soong.shared.tools.result import ErrorType, ToolResult
from soong.shared.tools.results import codec
from soong.shared.tools.surface import Surface
from tests.system.deployment import Deployment
from tests.unit.agents.parts import Notebook

pytestmark = [pytest.mark.timeout(120), pytest.mark.spec("EVT-01")]

ENDS = frozenset({"tool_completed", "tool_failed", "tool_denied"})

HOOK = """\
import json, sys
call = json.load(sys.stdin)
print(json.dumps({"input": {**call["input"], "content": call["input"]["content"].upper()}, "context": ["shouted"]}))
"""
READ: JsonObject = {"call": "code.read_file", "with": {"path": "${inputs.name}"}, "save": "read"}
PLAN: JsonObject = {
    "title": "Replay",
    "inputs": {"names": ["one.txt", "two.txt"]},
    "steps": [
        {
            "id": "each",
            "kind": "map",
            "over": "${inputs.names}",
            "as": "name",
            "step": {
                "instructions": "Read ${name}.",
                "inputs": {"path": "${name}"},
                "script": "tests.read_path",
            },
        },
        {
            "id": "report",
            "depends_on": ["each"],
            "allowed_tools": ["code.write_file"],
            "inputs": {"all": "${each.output}"},
            "instructions": "Write the report.",
            "script": "tests.report",
        },
        {
            "id": "end",
            "kind": "python",
            "call": "builtin.echo",
            "depends_on": ["report"],
            "inputs": {"x": "${report.output}"},
        },
    ],
}


@dataclass
class Recording:
    """All that is read of a task; nothing else is looked at afterwards."""

    session: Session
    task: Task
    steps: Sequence[Step]
    runs: Mapping[str, Run]
    nodes: Mapping[str, Sequence[Node]]
    events: Mapping[str, Sequence[Event]]
    calls: Mapping[str, Sequence[CallRow]]
    results: Mapping[str, StepResult]


async def recorded(service: Deployment, task: Task) -> Recording:
    store = service.store
    steps = await store.tasks.steps(task.id)
    runs = {run.id: run for run in await store.runs.list_runs(task_id=task.id)}
    return Recording(
        await store.sessions.session(task.session_id),
        await store.tasks.task(task.id),
        steps,
        runs,
        {run_id: await store.runs.nodes(run_id) for run_id in runs},
        {run_id: await store.runs.events(run_id) for run_id in runs},
        {run_id: await store.runs.calls(run_id) for run_id in runs},
        {step.step_id: await store.tasks.result(step.key) for step in steps},
    )


@pytest.fixture
async def recording(service: Deployment, tmp_path: Path) -> Recording:
    hook = tmp_path / "home" / "hook.py"
    hook.write_text(HOOK, encoding="utf-8")
    config = f'[[hooks.pre]]\nname = "shout"\ntools = "code.write_file"\ncommand = ["{sys.executable}", "{hook}"]\n'
    service.settings.home.joinpath("config.toml").write_text(config, encoding="utf-8")
    project = tmp_path / "project"
    project.mkdir()
    for name in ("one.txt", "two.txt"):
        project.joinpath(name).write_text(f"this is {name}\n", encoding="utf-8")

    async def answer(request: PermissionRequest) -> PermissionDecision:
        is_fine = request.shown.endswith("yes.txt")
        return PermissionDecision(Choice.ALLOW_ONCE if is_fine else Choice.DENY, "I said so")

    await service.start_workers(1)
    task = await service.submit(PLAN, {"names": ["one.txt", "two.txt"]}, project=project, callback=answer)
    ended = await service.finished(task)
    assert ended.status is TaskStatus.COMPLETED, service.logs()
    assert project.joinpath("yes.txt").read_text() == "REPORT"
    return await recorded(service, task)


# -- the DAG
@pytest.mark.spec("EVT-01.c")
async def test_the_dag_is_made_again_of_the_task_alone(recording: Recording, service: Deployment) -> None:
    catalogue = Catalogue.of(service.settings)
    plan = plan_from_json(recording.task.plan, "recorded", catalogue.known())
    again = new_task(
        plan,
        recording.task.inputs,
        recording.session,
        surface_of=catalogue.surface_of,
        default_model="script",
        now_us=recording.task.created_us,
        task_id=recording.task.id,
    )

    planned = [step for step in recording.steps if not step.map_key]
    assert [(new.step_id, new.kind, new.spec, new.depends_on, new.definition, new.model) for new in again.steps] == [
        (step.step_id, step.kind, step.spec, step.depends_on, step.definition, step.model) for step in planned
    ]
    each = next(step for step in planned if step.kind is StepKind.MAP)
    root = recording.runs[recording.task.root_run_id].identity
    children = expand_map(each, recording.task, {}, root)
    assert [(child.step_id, child.spec, child.title) for child in children] == [
        (step.step_id, step.spec, step.title) for step in recording.steps if step.map_key
    ]


# -- the agents
@dataclass
class Replay:
    """An executor that runs nothing: each call gets the result that it had."""

    tools: Mapping[str, ToolDefinition]
    results: Mapping[str, ToolResult]
    notebook: Notebook = field(default_factory=Notebook)
    calls: list[ToolCall] = field(default_factory=list)

    def resolve(self, name: str) -> ToolDefinition | None:
        return self.tools.get(name)

    async def execute(self, call: ToolCall) -> ToolResult:
        self.calls.append(call)
        result = self.results[call.id]
        await self.notebook.finished(call, result, duration_ms=0)
        return result

    async def refuse(self, call: ToolCall, type: ErrorType, message: str) -> ToolResult:
        return await self.execute(call)


class Recorded(Model[None]):
    """A model that gives the answers it gave."""

    def __init__(self, answers: Iterator[ModelResponse]) -> None:
        super().__init__()
        self.answers = answers

    @property
    def model_name(self) -> str:
        return "script"

    @property
    def system(self) -> str:
        return "soong"

    async def request(
        self, messages: list[ModelMessage], model_settings: ModelSettings | None, model_request_parameters: Any
    ) -> ModelResponse:
        return next(self.answers)


async def replayed(recording: Recording, run: Run, tools: Mapping[str, ToolDefinition]) -> tuple[AgentEnd, Replay]:
    """Play a run again, of its nodes only."""
    nodes = recording.nodes[run.id]
    answers = [
        cast(ModelResponse, ModelMessagesTypeAdapter.validate_python([node.payload["message"]])[0])
        for node in nodes
        if node.kind is NodeKind.ASSISTANT
    ]
    results = [codec.from_json(node.payload) for node in nodes if node.kind is NodeKind.TOOL_RESULT]
    system = next(str(node.payload["text"]) for node in nodes if node.kind is NodeKind.SYSTEM)
    instructions, facts = cast("list[str]", next(n.payload["texts"] for n in nodes if n.kind is NodeKind.USER))
    told = cast("dict[str, Any]", json.loads(facts))
    names = Surface.from_json(run.surface).tools
    given = iter(answers)
    model = Recorded(given)
    step = next(step for step in recording.steps if step.run_id == run.id)
    task = AgentTask(
        run.identity,
        system,
        instructions,
        told["inputs"],
        [tools[name] for name in names],
        run_dirs=told["run_dirs"],
        output_schema=step.spec.output,
    )
    replay = Replay({name: tools[name] for name in names}, {result.tool_call_id: result for result in results})
    end = await run_agent(task, model, replay, replay.notebook, replay.notebook, SystemClock())
    return end, replay


@pytest.mark.spec("EVT-01.a", "EVT-01.c")
async def test_every_agent_run_is_played_again_from_its_nodes(recording: Recording, service: Deployment) -> None:
    tools = {tool.name: tool for tool in Catalogue.of(service.settings).tools}
    agents = [step for step in recording.steps if step.kind is StepKind.AGENT]
    assert len(agents) == 3

    for step in agents:
        run = recording.runs[step.run_id]
        end, replay = await replayed(recording, run, tools)

        assert (end.end_reason, end.outcome) == (run.end_reason, step.outcome)
        assert end.output == recording.results[step.step_id].output
        played = [*replay.notebook.written, *end.nodes]
        assert [(node.kind, node.payload) for node in played] == [
            (node.kind, node.payload) for node in recording.nodes[run.id]
        ]
        noted = [*replay.notebook.events, *(event.type for event in end.events)]
        of_the_loop = set(noted)
        assert noted == [event.type for event in recording.events[run.id] if event.type in of_the_loop]


# -- what surrounds them
def of(recording: Recording, step_id: str) -> tuple[Sequence[Event], dict[str, CallRow]]:
    run_id = next(step.run_id for step in recording.steps if step.step_id == step_id)
    return recording.events[run_id], {row.tool_call_id: row for row in recording.calls[run_id]}


async def test_hook_results_and_decisions_stand_with_their_authors(recording: Recording) -> None:
    events, calls = of(recording, "report")
    by_type: dict[str, list[JsonObject]] = {}
    for event in events:
        by_type.setdefault(event.type, []).append(event.data)

    hooks = [(data["hook"], data["stage"], data["outcome"], data["input_diff"]) for data in by_type["hook_run"]]
    assert hooks == [("shout", "pre", "none", {"content": ["report", "REPORT"]})] * 2
    decided = [
        (data["author"], data["principal"], data["choice"], data["reason"]) for data in by_type["permission_decided"]
    ]
    assert decided == [("person", "local", "allow_once", "I said so"), ("person", "local", "deny", "I said so")]
    (started,) = by_type["tool_started"]
    first, second = calls.values()
    assert started["decision_id"] == first.decision_id == by_type["permission_decided"][0]["decision_id"]
    assert first.inputs["model_input"] == {"path": "yes.txt", "content": "report"}
    assert first.inputs["permission_input"] == {"value": {"path": "yes.txt", "content": "REPORT"}}
    assert [row.facts["decision"]["is_allowed"] for row in (first, second)] == [True, False]  # type: ignore[call-overload, index]  # as recorded
    assert [data["error"] for data in by_type["tool_denied"]] == ["permission_denied"]


async def test_every_log_is_gapless_and_every_call_has_its_end(recording: Recording) -> None:
    for run_id, events in recording.events.items():
        assert [event.seq for event in events] == list(range(1, recording.runs[run_id].last_seq + 1))
        queued = [name for event in events if event.type == "tool_queued" for name in cast(Any, event.data["tools"])]
        ended = [event.data["tool_call_id"] for event in events if event.type in ENDS]
        assert queued == ended == [row.tool_call_id for row in recording.calls[run_id]]


async def test_a_functions_step_has_its_result_recorded(recording: Recording) -> None:
    end = next(step for step in recording.steps if step.kind is StepKind.PYTHON)

    (node,) = recording.nodes[end.run_id]

    assert (node.kind, node.payload["output"]) == (NodeKind.RESULT, recording.results["end"].output)
