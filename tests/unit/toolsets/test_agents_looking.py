from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import pytest
from msgspec.structs import replace

from soong.shared.agents.definition import AgentDefinition, builtin_definitions
from soong.shared.core.identity import RunIdentity
from soong.shared.engine.tasks.spec import StepStatus, TaskStatus
from soong.shared.engine.tasks.step import Claim, Step, StepError, Task
from soong.shared.permissions.rules import brings_untrusted
from soong.shared.tools.definition import HandlerOutput, RunDirs
from soong.shared.tools.pipeline import RunScope, ToolPipeline
from soong.shared.tools.ports import ToolCall
from soong.shared.tools.registry import ToolRegistry
from soong.shared.tools.result import ErrorType, JsonBlock, ToolFailure, ToolResult
from soong.shared.toolsets.agents.looking import GIVE_AGAIN, START_ANOTHER, LookingTools, child_outcome, task_outcome
from tests.model.builders import make_session, make_task, make_worker, open_session, open_worker, take_turn
from tests.model.clock import FakeClock
from tests.model.memory.store import MemoryStore
from tests.unit.agents.parts import Notebook, RuleGate
from tests.unit.tools.parts import error_of

OWN = AgentDefinition("writer", "Writer", "Writes notes.", "Write.", suggested_tools=("code.*",), model="acme:large")


@dataclass
class Parent:
    """The root run of a task, whose step ``a`` a worker of two holds."""

    store: MemoryStore
    identity: RunIdentity
    child: Claim

    more: tuple[AgentDefinition, ...] = ()

    async def look(self, tool: str, **arguments: Any) -> ToolResult:
        registry = ToolRegistry()
        registry.add(
            LookingTools(self.store, lambda _project: (*builtin_definitions(), OWN, *self.more)), is_builtin=True
        )
        scope = RunScope(self.identity, 1, RunDirs(Path("/p"), Path("/p"), Path("/r")))
        pipeline = ToolPipeline(registry.definitions(), scope, RuleGate(), Notebook())
        return await pipeline.execute(ToolCall("c1", f"agent.{tool}", arguments))

    async def see(self, tool: str, **arguments: Any) -> dict[str, Any]:
        result = await self.look(tool, **arguments)
        assert result.error is None, result.error
        return cast("dict[str, Any]", result.data)


@pytest.fixture
async def parent() -> Parent:
    store, clock = MemoryStore(), FakeClock()
    ownership = await open_session(store, make_session(owner_id="own_1"))
    worker_id = await open_worker(store, make_worker("wrk_1", slots=4))
    await open_worker(store, make_worker("wrk_2", slots=2, pools=("gpu",)))
    task = make_task(ownership.session_id, "a", "b", "c")
    await store.tasks.create_task(task)
    advance = await take_turn(store, worker_id, live_workers=2, now_us=clock.now_us())
    return Parent(store, task.root_run.identity, advance.claims[0])


@pytest.mark.spec("DIS-01.a", "DIS-02.b")
async def test_every_definition_that_may_be_named_is_listed(parent: Parent) -> None:
    listed = {one["id"]: one for one in (await parent.see("list_agent_definitions"))["agents"]}

    assert listed.keys() == {*builtin_definitions().ids, "writer"}
    facts = {"id": "writer", "name": "Writer", "description": "Writes notes.", "mode": "default"}
    assert listed["writer"] == {**facts, "tools": ["code.*"], "model": "acme:large"}


@pytest.mark.spec("DIS-01.d", "DIS-04.b")
async def test_living_workers_are_listed_with_slots_and_what_waits(parent: Parent) -> None:
    seen = await parent.see("list_workers")

    slots = {one["id"]: (one["state"], one["pools"], one["slots"], one["busy"]) for one in seen["workers"]}
    assert slots == {"wrk_1": ("live", ["default"], 4, 1), "wrk_2": ("live", ["gpu"], 2, 0)}
    assert seen["ready_steps_by_pool"] == {"default": 2}


@pytest.mark.spec("DIS-04.b")
async def test_workers_are_listed_with_their_versions_and_the_runs_of_this_session_only(parent: Parent) -> None:
    other = await open_session(parent.store, make_session(owner_id="own_1"))
    await parent.store.tasks.create_task(make_task(other.session_id, "secret"))
    await take_turn(parent.store, "wrk_1", claim=3, now_us=FakeClock().now_us())
    await open_worker(parent.store, make_worker("wrk_3", capabilities=("version:1.2.3", "python:3.11")))

    listed = {one["id"]: one for one in (await parent.see("list_workers"))["workers"]}

    assert listed["wrk_1"]["busy"] == 4
    assert parent.child.identity.run_id in {run["run_id"] for run in listed["wrk_1"]["runs"]}
    assert {name: (one["version"], len(one["runs"])) for name, one in listed.items()} == {
        "wrk_1": ("", 3),
        "wrk_2": ("", 0),
        "wrk_3": ("1.2.3", 0),
    }


@pytest.mark.spec("DIS-01.f")
async def test_a_run_that_was_started_shows_its_state_and_no_other_run_does(parent: Parent) -> None:
    run_id = parent.child.identity.run_id

    seen = await parent.see("inspect_agent", run_id=run_id)
    own = await parent.look("inspect_agent", run_id=parent.identity.run_id)

    assert (seen["run_id"], seen["status"], seen["attempt"]) == (run_id, "running", 1)
    assert seen["step"]["id"] == "a"
    assert [event["type"] for event in seen["last_events"]]
    assert error_of(own).type is ErrorType.INVALID_INPUT
    assert "you have started no run" in error_of(own).message


@pytest.mark.spec("PER-21")
@pytest.mark.parametrize("definition", ["project.x", "claude.x"])
async def test_a_list_with_a_definition_of_the_project_taints_and_one_without_does_not(
    parent: Parent, definition: str
) -> None:
    without = await parent.look("list_agent_definitions")
    parent.more = (replace(OWN, id=definition),)
    with_one = await parent.look("list_agent_definitions")

    assert (brings_untrusted(without), brings_untrusted(with_one)) == (False, True)
    assert definition in [one["id"] for one in with_one.data["agents"]]  # type: ignore[index,call-overload,union-attr]


# -- what a call that started agents comes to: a success, or an error that says what the facts say (EXE-04)
FACTS: dict[str, Any] = {"step": "a", "output": None}


@pytest.fixture
async def rows() -> tuple[Task, Step]:
    store = MemoryStore()
    ownership = await open_session(store, make_session(owner_id="own_1"))
    task = make_task(ownership.session_id, "a", "b")
    await store.tasks.create_task(task)
    return await store.tasks.task(task.id), (await store.tasks.steps(task.id))[0]


def failure_in(outcome: HandlerOutput) -> ToolFailure:
    """Return the error of an outcome, which has all its facts as well."""
    assert isinstance(outcome, ToolResult)
    assert (outcome.content, outcome.data) == ((JsonBlock(FACTS),), FACTS)
    return error_of(outcome)


def ended(step: Step, status: StepStatus, error: StepError | None = None) -> Step:
    return replace(step, status=status, error=error)


@pytest.mark.spec("EXE-04.f")
@pytest.mark.parametrize(
    ("status", "error", "type_", "words"),
    [
        (StepStatus.FAILED, StepError("provider_failed", "401"), ErrorType.EXECUTION_FAILED, "provider_failed: 401"),
        (StepStatus.FAILED, StepError("permission_denied", "no"), ErrorType.EXECUTION_FAILED, "permission_denied: no"),
        (StepStatus.FAILED, StepError("budget_exceeded", "5 usd"), ErrorType.BUDGET_EXCEEDED, "5 usd"),
        (StepStatus.CANCELLED, None, ErrorType.CANCELLED, "was cancelled"),
        (StepStatus.SKIPPED, None, ErrorType.EXECUTION_FAILED, "ended as skipped"),
    ],
)
def test_a_child_that_did_not_complete_is_an_error(
    rows: tuple[Task, Step], status: StepStatus, error: StepError | None, type_: ErrorType, words: str
) -> None:
    failure = failure_in(child_outcome(ended(rows[1], status, error), FACTS, lack="", hint=START_ANOTHER))

    assert (failure.type, failure.hint, words in failure.message) == (type_, START_ANOTHER, True)


@pytest.mark.spec("EXE-04.f")
def test_a_child_that_completed_is_its_facts_and_one_that_no_worker_takes_an_error_that_says_why(
    rows: tuple[Task, Step],
) -> None:
    assert child_outcome(ended(rows[1], StepStatus.COMPLETED), FACTS, lack="", hint="") == FACTS

    failure = failure_in(child_outcome(rows[1], FACTS, lack="the label 'gpu'", hint=START_ANOTHER))

    assert (failure.type, "'a': the label 'gpu'" in failure.message) == (ErrorType.WORKER_INCOMPATIBLE, True)


@pytest.mark.spec("EXE-04.f")
def test_a_task_with_failed_steps_is_an_error_that_names_them_until_it_is_completed(rows: tuple[Task, Step]) -> None:
    task, step = rows
    failed = [
        ended(replace(step, spec=replace(step.spec, id=f"s{n}")), StepStatus.FAILED, StepError("x", "y"))
        for n in range(12)
    ]

    failure = failure_in(task_outcome(task, failed, FACTS, {}))

    assert (failure.type, failure.hint) == (ErrorType.EXECUTION_FAILED, GIVE_AGAIN)
    assert failure.message.startswith("steps 's0', 's1'")
    assert failure.message.endswith("'s9' and 2 more failed")
    assert task_outcome(replace(task, status=TaskStatus.COMPLETED), failed, FACTS, {}) == FACTS
    assert task_outcome(task, [step], FACTS, {}) == FACTS


@pytest.mark.spec("EXE-04.f")
def test_a_task_that_was_cancelled_or_failed_is_an_error(rows: tuple[Task, Step]) -> None:
    task, step = rows
    cancelled = replace(task, status=TaskStatus.CANCELLED, reason="by ada")
    gone = replace(task, status=TaskStatus.FAILED, reason="given up")

    said = [failure_in(task_outcome(one, [step], FACTS, {})) for one in (cancelled, gone)]

    assert [one.type for one in said] == [ErrorType.CANCELLED, ErrorType.EXECUTION_FAILED]
    assert (said[0].hint, "given up" in said[1].message) == ("by ada", True)


@pytest.mark.spec("EXE-04.f")
def test_a_task_that_waits_for_a_worker_is_an_error_that_says_for_what(rows: tuple[Task, Step]) -> None:
    task, step = rows

    failure = failure_in(task_outcome(task, [step], FACTS, {step.key: "the tool x"}))

    assert (failure.type, failure.message) == (ErrorType.WORKER_INCOMPATIBLE, "no worker takes step 'a': the tool x")
