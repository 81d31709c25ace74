"""A plan run in this process: the real loop, pipeline and tools over a store that is a few lists."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from msgspec.structs import replace

from soong.orchestrator.client.catalog import Catalogue
from soong.orchestrator.embedded.module_import import import_here
from soong.shared.agents.definition import AgentLimits, builtin_definitions
from soong.shared.agents.loop import run_agent
from soong.shared.agents.model import resolve_model
from soong.shared.agents.ports import AgentEnd, AgentTask
from soong.shared.core.identity import Role, RunIdentity
from soong.shared.core.jsontext import Json, JsonObject
from soong.shared.core.timing import Clock, SystemClock
from soong.shared.engine.runs.call_events import result_nodes
from soong.shared.engine.runs.events import EventType, NewEvent, NewNode, Node
from soong.shared.engine.runs.record import EndReason
from soong.shared.engine.runs.store import CallRow
from soong.shared.engine.sessions.session import ApprovalMode, Session
from soong.shared.engine.tasks.expansion import expand_map
from soong.shared.engine.tasks.functions import StepContext, resolve
from soong.shared.engine.tasks.new_tasks import new_task
from soong.shared.engine.tasks.plan.plan import Plan, PlanNames, Registered, bind_inputs, bind_step
from soong.shared.engine.tasks.plan.reader import load_plan
from soong.shared.engine.tasks.spec import StepKind, StepStatus, TaskStatus
from soong.shared.engine.tasks.step import NewStep, NewTask, Outcome, Step, StepResult, Task
from soong.shared.tools.definition import RunDirs, ToolDefinition
from soong.shared.tools.hooks.chain import NO_HOOKS, Hooks
from soong.shared.tools.pipeline import RunScope, ToolPipeline
from soong.shared.tools.ports import CallRecord, GateCall, StartedCall, ToolCall, Verdict
from soong.shared.tools.result import ArtifactRef, ErrorType, ToolResult
from soong.shared.tools.surface import Surface, SurfaceRequest, compute_surface
from soong.shared.toolsets.code.toolset import CodeTools
from tests.model.clock import FakeClock

EXAMPLES = Path(__file__).parents[3] / "examples"
KNOWN = PlanNames(tools=Catalogue().names, definitions=builtin_definitions().ids)


@dataclass
class Notebook:
    """Transcript and call log of one run at once: its nodes and events in order, and how often it was written."""

    written: list[NewNode] = field(default_factory=list)
    events: list[str] = field(default_factory=list)
    calls_: list[CallRow] = field(default_factory=list)
    appends: int = 0
    started_calls: list[str] = field(default_factory=list)
    discarded: list[str] = field(default_factory=list)

    async def nodes(self) -> Sequence[Node]:
        return [Node("run_1", n, n - 1, node.kind, node.payload, 0) for n, node in enumerate(self.written, 1)]

    async def calls(self) -> Sequence[CallRow]:
        return self.calls_

    async def append(
        self, nodes: Sequence[NewNode], events: Sequence[NewEvent], calls: Sequence[ToolCall] = ()
    ) -> None:
        self.appends += 1
        self.written += nodes
        self.events += [event.type for event in events]

    async def started(self, started: StartedCall) -> None:
        self.started_calls.append(started.call.id)

    async def finished(
        self, call: ToolCall, result: ToolResult, *, duration_ms: int, record: CallRecord | None = None
    ) -> None:
        if result.error is not None and result.error.type is ErrorType.STREAM_DISCARDED:
            self.events.append(EventType.TOOL_FAILED)
            self.discarded.append(call.id)
            return
        self.written += result_nodes(call.tool, result)

    async def note(self, type: str, data: JsonObject) -> None:
        self.events.append(type)


@dataclass
class RuleGate:
    """Allows reads, and of the writes what ``allows`` says."""

    allows: Callable[[GateCall], bool] = lambda _call: True
    asked: list[GateCall] = field(default_factory=list)

    async def decide(self, call: GateCall) -> Verdict:
        if call.traits.is_read_only:
            return Verdict(is_allowed=True, author="rule")
        self.asked.append(call)
        if self.allows(call):
            return Verdict(is_allowed=True, author="person")
        return Verdict(is_allowed=False, author="person", reason="no", error=ErrorType.PERMISSION_DENIED)


class ArtifactBin:
    """Takes artifacts and keeps none."""

    async def put(self, data: bytes, media_type: str, name: str) -> ArtifactRef:
        return ArtifactRef("0" * 64, len(data), media_type, name)

    async def put_made(self, make: Callable[[], bytes], media_type: str, name: str) -> ArtifactRef:
        return await self.put(make(), media_type, name)


def make_identity() -> RunIdentity:
    return RunIdentity("sess_1", "run_1", "agent_1", Role.WORKER, "default_worker_agent", model="script")


def make_task(**overrides: object) -> AgentTask:
    task = AgentTask(make_identity(), "you are a worker", "do it", {}, ())
    return replace(task, **overrides)  # the fields of AgentTask by name


async def no_pause(_seconds: float) -> None:
    """Wait for nothing after a failure."""


async def run_task(
    task: AgentTask,
    model: Any,
    notebook: Notebook,
    *,
    gate: RuleGate | None = None,
    hooks: Hooks = NO_HOOKS,
    clock: Clock | None = None,
    **more: Any,
) -> AgentEnd:
    """Run an agent to its end over a pipeline of its task's tools; no failure makes it wait."""
    scope = RunScope(task.identity, 1, RunDirs(Path("/p"), Path("/p"), Path("/r")))
    pipeline = ToolPipeline(task.tools, scope, gate or RuleGate(), notebook, hooks=hooks, deferred=task.deferred)
    more = {"sleep": no_pause, **more}
    return await run_agent(task, model, pipeline, notebook, notebook, clock or FakeClock(), **more)


@dataclass
class Playground:
    """Runs plans on a project folder, step after step."""

    project: Path
    cwd: Path
    gate: RuleGate = field(default_factory=RuleGate)
    ends: dict[str, AgentEnd] = field(default_factory=dict)
    notebooks: dict[str, Notebook] = field(default_factory=dict)

    async def run_plan(self, plan: Plan, **inputs: Json) -> dict[str, StepResult]:
        """Run every step and return the results by step id."""
        session = Session("sess_1", str(self.project), str(self.cwd), ApprovalMode.PROMPT, 0)
        made = new_task(
            plan, bind_inputs(plan, inputs), session, surface_of=_surface_of, default_model="script", now_us=0
        )
        results: dict[str, StepResult] = {}
        left = list(made.steps)
        while left:
            step = next(one for one in left if all(_id(key) in results for key in one.depends_on))
            left.remove(step)
            given = {_id(key): results[_id(key)] for key in step.depends_on}
            results[step.step_id] = await self._step(step, made, given)
        return results

    async def _step(self, step: NewStep, made: NewTask, given: Mapping[str, StepResult]) -> StepResult:
        if step.kind is StepKind.MAP:
            children = expand_map(row_of(step), task_of(made), given, made.root_run.identity)
            ended = [await self._step(child, made, {}) for child in children]
            return StepResult(step.step_id, StepStatus.COMPLETED, [one.output for one in ended])
        bound = bind_step(step.spec, made.inputs, given)
        assert step.run is not None
        if step.kind is StepKind.PYTHON:
            output = resolve(step.spec.call).body(bound.inputs, StepContext(step.run.identity))
            return StepResult(step.step_id, StepStatus.COMPLETED, cast(Json, output))
        end = await self._agent(step, bound.instructions, bound.inputs)
        self.ends[step.step_id] = end
        status = StepStatus.COMPLETED if end.end_reason is EndReason.COMPLETED else StepStatus.FAILED
        return StepResult(step.step_id, status, end.output, end.outcome)

    async def _agent(self, step: NewStep, instructions: str, inputs: JsonObject) -> AgentEnd:
        assert step.run is not None
        surface = Surface.from_json(step.run.surface)
        tools = [tool for tool in CodeTools().tools() if tool.name in surface.tools]
        run_dir = self.cwd / "home" / step.run.identity.run_id
        place = RunDirs(self.project, self.cwd, run_dir, (self.cwd,))
        notebook = self.notebooks[step.step_id] = Notebook()
        scope = RunScope(step.run.identity, 1, place)
        pipeline = ToolPipeline(tools, scope, self.gate, notebook, artifacts=ArtifactBin())
        task = AgentTask(
            step.run.identity,
            builtin_definitions().get(step.definition).instructions,
            instructions,
            inputs,
            tools,
            run_dirs={"project": str(self.project), "cwd": str(self.cwd)},
            output_schema=step.spec.output,
            limits=AgentLimits(),
        )
        model = resolve_model(step.model, step.spec.script)
        return await run_agent(task, model, pipeline, notebook, notebook, SystemClock())


def load_example(name: str) -> Plan:
    file = EXAMPLES / name

    def load(module: str) -> Registered:
        return import_here([module], (), [str(file.parent)])

    return load_plan(file, replace(KNOWN, load_module=load))


def _surface_of(step: object) -> JsonObject:
    allowed = getattr(step, "allowed_tools", None)
    return compute_surface(CodeTools().tools(), SurfaceRequest(Role.WORKER, allowed_tools=allowed)).as_json()


def _id(key: str) -> str:
    return key.partition("/")[2]


def task_of(made: NewTask) -> Task:
    root = made.root_run.identity.run_id
    return Task(made.id, made.session_id, made.title, TaskStatus.RUNNING, made.plan, made.inputs, root, 0)


def row_of(step: NewStep) -> Step:
    """Return the row that a store would give for a new step."""
    return replace(step, status=StepStatus.EXPANDING)


__all__ = ["EXAMPLES", "KNOWN", "Notebook", "Outcome", "Playground", "RuleGate", "ToolDefinition", "load_example"]
