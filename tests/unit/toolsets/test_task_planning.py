"""Those who plan make, watch, change and end tasks through the service, with an owner and workers that are real."""

from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import pytest
from msgspec.structs import replace

from soong.orchestrator.client.tool_registry import owner_registry, registry_of
from soong.shared.agents.definition import builtin_definitions
from soong.shared.core.identity import Role, RunIdentity
from soong.shared.core.jsontext import Json
from soong.shared.core.timing import SystemClock
from soong.shared.engine.sessions.session import Session
from soong.shared.engine.tasks.functions import known_functions
from soong.shared.engine.tasks.plan.plan import PlanNames
from soong.shared.engine.tasks.planner import Planner
from soong.shared.engine.tasks.service import TaskService
from soong.shared.engine.tasks.spec import StepStatus, TaskEvent, TaskStatus
from soong.shared.tools.definition import Permission, RunDirs
from soong.shared.tools.permission_check import effective_traits
from soong.shared.tools.pipeline import RunScope, ToolPipeline
from soong.shared.tools.ports import ToolCall
from soong.shared.tools.result import ErrorType, ToolResult
from soong.shared.tools.surface import SurfaceRequest, compute_surface
from soong.shared.toolsets.sources import ToolEnvironment
from tests.model.builders import make_session, make_step, make_task
from tests.model.memory.store import MemoryStore
from tests.one_loop import OneLoop
from tests.unit.agents.parts import Notebook, RuleGate
from tests.unit.tools.parts import error_of
from tests.waiting import looks

pytestmark = pytest.mark.spec("DAG-01")

CHILD_TASK_TOOLS = {"agent.task_get", "agent.task_query_steps", "agent.task_claim_step", "agent.task_update_step"}
PLANNING = {
    *("agent.plan_template", "agent.task_template", "agent.task_create", "agent.task_list", "agent.task_update"),
    *("agent.task_complete", "agent.task_fail", "agent.task_cancel"),
}


@dataclass
class Planning:
    """An agent that plans, in the loop of its session's owner, beside two workers."""

    service: OneLoop
    session: Session
    identity: RunIdentity
    gate: RuleGate = field(default_factory=RuleGate)
    calls: int = 0
    task_id: str = ""
    """Of the task that was made last."""

    def __post_init__(self) -> None:
        most = self.service.settings.max_children_per_run
        names = PlanNames(functions=frozenset(known_functions()), choosable_models=frozenset({"some:*"}))
        planner = Planner(names, max_children=most)
        tasks = TaskService(self.service.store, self.service.board, self.service.board, SystemClock(), planner)
        known = builtin_definitions()
        registry = owner_registry(ToolEnvironment(), tasks, SystemClock(), lambda _project: known)
        self.tools = registry.select(compute_surface(registry.definitions(), SurfaceRequest(self.identity.role)).tools)

    async def try_to(self, tool: str, *, call_id: str = "", **arguments: Any) -> ToolResult:
        self.calls += 1
        scope = RunScope(self.identity, 0, RunDirs(Path("/p"), Path("/p"), Path("/r")))
        pipeline = ToolPipeline(self.tools, scope, self.gate, Notebook())
        return await pipeline.execute(ToolCall(call_id or f"c{self.calls}", f"agent.{tool}", arguments))

    async def do(self, tool: str, **arguments: Any) -> dict[str, Any]:
        result = await self.try_to(tool, **arguments)
        assert result.error is None, result.error
        data = cast("dict[str, Any]", result.data)
        self.task_id = data["id"] if tool == "task_create" else self.task_id
        return data

    async def until(self, step_id: str, status: StepStatus) -> None:
        """Wait until a step of the task made last has this status, as the agent sees it."""
        async for _ in looks(10):
            if step_id in await self.ids(status):
                break

    async def ids(self, *statuses: StepStatus) -> set[str]:
        wanted = [status.value for status in statuses]
        found = await self.do("task_query_steps", task_id=self.task_id, statuses=wanted)
        return {step["id"] for step in found["steps"]}

    async def end_run(self) -> None:
        """End the agent's run, which is the root run of a task of its own here."""
        own = (await self.service.store.sessions.session(self.session.id)).ownership
        now_us = SystemClock().now_us()
        await self.service.store.tasks.end_task(own, self.identity.task_id, TaskEvent.FAIL, reason="", now_us=now_us)


@pytest.fixture
async def planning() -> AsyncIterator[Planning]:
    async with OneLoop(MemoryStore()) as service:
        session = make_session()
        await service.store.sessions.open_session(session)
        # Its root run stands for the run of the agent that plans; a step that nobody takes keeps it going.
        home = make_task(session.id, make_step("held", pool="nobody"))
        await service.store.tasks.create_task(home)
        async for _ in looks(10):
            if (await service.store.sessions.session(session.id)).owner_id:
                break
        yield Planning(service, session, replace(home.root_run.identity, task_id=home.id))


def echo(step_id: str, *depends_on: str, **more: Json) -> dict[str, Json]:
    return {"id": step_id, "kind": "python", "call": "builtin.echo", "depends_on": list(depends_on), **more}


def fails(step_id: str, **more: Json) -> dict[str, Json]:
    return {"id": step_id, "kind": "python", "call": "builtin.fail", **more}


# -- what they are
@pytest.mark.spec("ETS-06.a", "ETS-07", "REG-05.j", "REG-07.d", "DAG-01.b", "DAG-01.d", "DAG-01.e")
def test_all_are_readonly_for_those_who_plan_only_and_those_that_change_tasks_run_alone() -> None:
    tools = {tool.name: tool for tool in registry_of(ToolEnvironment()).definitions()}

    assert tools.keys() >= PLANNING | CHILD_TASK_TOOLS
    assert {tools[name].permission for name in PLANNING | CHILD_TASK_TOOLS} == {Permission.READONLY}
    beside = {name for name in PLANNING | CHILD_TASK_TOOLS if effective_traits(tools[name], {}).is_concurrency_safe}
    assert beside == {
        f"agent.{name}" for name in ("plan_template", "task_template", "task_list", "task_get", "task_query_steps")
    }
    for role in Role:
        offered = set(compute_surface(tools.values(), SurfaceRequest(role, allowed_tools=("*",))).tools)
        assert offered & (PLANNING | CHILD_TASK_TOOLS) == (
            CHILD_TASK_TOOLS if role in {Role.SUB, Role.FORK, Role.WORKER} else PLANNING | CHILD_TASK_TOOLS
        )


# -- making
@pytest.mark.spec("DAG-01.a")
async def test_templates_can_be_made_into_tasks_as_they_stand(planning: Planning) -> None:
    told = await planning.do("plan_template")
    assert "on_failure" in told["plan"]

    for shape in ("chain", "fan_out", "map"):
        template = await planning.do("task_template", shape=shape)
        made = await planning.do("task_create", **template, model="some:model")
        await planning.do("task_cancel", task_id=made["id"])


@pytest.mark.spec("DAG-01.b")
async def test_created_task_runs_under_the_agent_and_waits_for_its_word(planning: Planning) -> None:
    made = await planning.do(
        "task_create",
        title="t",
        inputs={"x": 7},
        steps=[echo("a", inputs={"x": "${inputs.x}"}), echo("b", "a", inputs={"y": "${a.output.x}"})],
    )
    await planning.until("b", StepStatus.COMPLETED)

    result = await planning.do("task_get", task_id=made["id"], step_id="b")
    store = planning.service.store
    root = (await store.runs.run((await store.tasks.task(made["id"])).root_run_id)).identity
    assert result["output"] == {"y": 7}
    assert (root.parent_run_id, root.parent_agent_id) == (planning.identity.run_id, planning.identity.agent_id)
    assert (await store.tasks.task(made["id"])).status is TaskStatus.RUNNING
    ended = await planning.do("task_complete", task_id=made["id"], reason="all there")
    assert ended["status"] == "completed"


@pytest.mark.spec("DIS-07.h", "DAG-01.b")
async def test_a_created_task_has_the_limits_that_its_agent_sets(planning: Planning) -> None:
    sleeps = {"id": "a", "kind": "python", "call": "builtin.sleep", "inputs": {"seconds": 60}}
    made = await planning.do("task_create", title="t", steps=[sleeps, echo("b", "a")], limits={"wall_s": 0.2})
    await planning.until("b", StepStatus.CANCELLED)

    told = await planning.do("task_get", task_id=made["id"], step_id="a")
    assert told["error"]["message"] == "the task has reached its limit wall_s: its 0.2 s have passed"
    await planning.do("task_update", task_id=made["id"], add_steps=[echo("c")])
    await planning.until("c", StepStatus.CANCELLED)
    ended = await planning.do("task_fail", task_id=made["id"], reason="too slow")
    assert ended["status"] == "failed"


@pytest.mark.spec("DAG-01.b")
async def test_the_same_call_made_again_makes_no_second_task(planning: Planning) -> None:
    first = await planning.try_to("task_create", call_id="again", title="t", steps=[echo("a")])
    second = await planning.try_to("task_create", call_id="again", title="t", steps=[echo("a")])

    assert first.error is second.error is None
    assert cast(Any, first.data)["id"] == cast(Any, second.data)["id"]
    assert len((await planning.do("task_list"))["tasks"]) == 2  # and the one that its own run stands in


async def test_the_same_change_made_again_after_a_crash_is_made_once(planning: Planning) -> None:
    made = await planning.do("task_create", title="t", steps=[echo("a")])

    for _ in range(2):
        result = await planning.try_to("task_update", call_id="again", task_id=made["id"], add_steps=[echo("b")])
        assert result.error is None

    steps = await planning.service.store.tasks.steps(made["id"])
    assert [step.step_id for step in steps] == ["a", "b"]


@pytest.mark.spec("DAG-02")
@pytest.mark.parametrize(
    ("steps", "named"),
    [
        pytest.param([echo("a", "b"), echo("b", "a")], "a -> b -> a", id="circle"),
        pytest.param([echo("a", "nowhere")], "'nowhere'", id="unknown-dependency"),
        pytest.param([echo("a"), echo("a")], "the id 'a' is taken", id="duplicate-id"),
        pytest.param([echo("a", inputs={"x": "${b.output}"}), echo("b")], "not a dependency", id="reference"),
        pytest.param([{"id": "a", "instructions": "x", "model": "script"}], "no script", id="script-model"),
    ],
)
async def test_a_wrong_plan_is_refused_by_name_and_nothing_is_made(
    planning: Planning, steps: list[dict[str, Json]], named: str
) -> None:
    result = await planning.try_to("task_create", title="t", steps=steps)

    assert error_of(result).type is ErrorType.INVALID_INPUT
    assert named in error_of(result).message
    assert len(await planning.service.store.tasks.list_tasks()) == 1


# -- failures wait for the agent
@pytest.mark.spec("DAG-05.e")
async def test_dependents_of_a_failure_wait_until_the_agent_decides(planning: Planning) -> None:
    made = await planning.do("task_create", title="t", steps=[fails("bad"), echo("after", "bad"), echo("other")])
    await planning.until("bad", StepStatus.FAILED)
    await planning.until("other", StepStatus.COMPLETED)

    assert await planning.ids(StepStatus.PENDING, StepStatus.FAILED) == {"bad", "after"}
    await planning.do("task_update", task_id=made["id"], skip_steps=["bad"], reason="not needed")
    await planning.until("after", StepStatus.SKIPPED)


@pytest.mark.spec("DAG-05.e")
async def test_the_agent_gives_a_failed_step_to_another_agent_or_cancels_what_waits(planning: Planning) -> None:
    work = {"id": "work", "instructions": "Nobody here runs agents.", "model": "some:model", "agent": "writer"}
    made = await planning.do("task_create", title="t", steps=[work, echo("after", "work")])
    await planning.until("work", StepStatus.FAILED)
    store = planning.service.store

    await planning.do("task_update", task_id=made["id"], retry_steps=[{"step": "work", "agent": "reviewer"}])
    step = (await store.tasks.steps(made["id"]))[0]
    async for _ in looks(10):
        step = (await store.tasks.steps(made["id"]))[0]
        if step.attempt >= 2 and step.status is StepStatus.FAILED:
            break
    waiting = (await store.tasks.steps(made["id"]))[1].status
    await planning.do("task_update", task_id=made["id"], cancel_steps=["after"], reason="not needed")
    await planning.until("after", StepStatus.CANCELLED)

    assert (step.definition, waiting) == ("reviewer", StepStatus.PENDING)
    assert (await store.runs.run(step.run_id)).identity.definition == "reviewer"


@pytest.mark.spec("DAG-05")
async def test_a_policy_that_the_plan_names_holds_under_an_agent_too(planning: Planning) -> None:
    bad = fails("bad", on_failure="skip_dependents")
    await planning.do("task_create", title="t", steps=[bad, echo("after", "bad")])

    await planning.until("after", StepStatus.SKIPPED)


@pytest.mark.spec("DAG-05")
async def test_when_the_agents_run_has_ended_its_tasks_are_settled_like_any_other(planning: Planning) -> None:
    made = await planning.do("task_create", title="t", steps=[fails("bad"), echo("after", "bad")])
    await planning.until("bad", StepStatus.FAILED)

    await planning.end_run()

    task = await planning.service.finished(made["id"])
    assert (task.status, task.reason) == (TaskStatus.FAILED, "bad")


# -- growing
@pytest.mark.parametrize(
    ("change", "named"),
    [
        pytest.param({"add_steps": [echo("a")]}, "a step 'a' already", id="taken"),
        pytest.param({"add_steps": [echo("n", "nope")]}, "there is no step 'nope'", id="unknown-dependency"),
        pytest.param({"add_steps": [echo("n", "m"), echo("m", "n")]}, "n -> m -> n", id="circle"),
        pytest.param({"add_dependencies": [{"step": "a", "depends_on": ["b"]}]}, "only a step that", id="left-pending"),
        pytest.param({"add_dependencies": [{"step": "b", "depends_on": ["zz"]}]}, "no such step", id="unknown-edge"),
        pytest.param({"retry_steps": [{"step": "a"}]}, "cannot take 'retry'", id="not-failed"),
        pytest.param({"retry_steps": [{"step": "a", "agent": "x"}]}, "is a python step", id="no-agent-to-change"),
        pytest.param({"skip_steps": ["b"], "cancel_steps": ["b"]}, "name it once", id="twice"),
        pytest.param({"priorities": {"b": 5000}}, "from -1000 to 1000", id="priority"),
        pytest.param({"reason": "just so"}, "nothing is asked for", id="nothing"),
    ],
)
async def test_a_change_that_cannot_be_is_refused_by_name_and_nothing_changes(
    planning: Planning, change: dict[str, Any], named: str
) -> None:
    slow = {"id": "a", "kind": "python", "call": "builtin.sleep", "inputs": {"seconds": 30}}
    made = await planning.do("task_create", title="t", steps=[slow, echo("b", "a")])
    await planning.until("a", StepStatus.RUNNING)

    result = await planning.try_to("task_update", task_id=made["id"], **change)

    assert named in error_of(result).message
    assert [step.step_id for step in await planning.service.store.tasks.steps(made["id"])] == ["a", "b"]


# -- whose
async def test_tasks_of_other_sessions_are_out_of_reach(planning: Planning) -> None:
    _, foreign = await planning.service.submit({"title": "t", "steps": [echo("a")]})

    for tool in ("task_get", "task_query_steps", "task_cancel", "task_complete"):
        result = await planning.try_to(tool, task_id=foreign.id)
        assert "no task" in error_of(result).message

    assert foreign.id not in {task["id"] for task in (await planning.do("task_list"))["tasks"]}


async def test_the_task_need_not_be_named_while_there_is_one(planning: Planning) -> None:
    made = await planning.do("task_create", title="t", steps=[echo("a", pool="nobody")])
    several = await planning.try_to("task_get")  # with the one that stands for the agent's own
    await planning.end_run()

    assert "several tasks" in error_of(several).message
    assert (await planning.do("task_get"))["id"] == made["id"]


async def test_one_who_plans_claims_no_step(planning: Planning) -> None:
    await planning.do("task_create", title="t", steps=[echo("a")])

    for tool, arguments in (("task_claim_step", {"step_id": "a"}), ("task_update_step", {"progress": "x"})):
        result = await planning.try_to(tool, **arguments)
        assert error_of(result).type is ErrorType.STEP_NOT_CLAIMED
