"""Agents look at what they may start, at who lives, and at what they have started (DIS-01, DIS-04)."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import pytest
from msgspec.structs import replace

from soong.shared.agents.definition import AgentDefinition, builtin_definitions
from soong.shared.core.identity import RunIdentity
from soong.shared.engine.tasks.step import Claim
from soong.shared.permissions.taint import brings_untrusted
from soong.shared.tools.definition import RunDirs
from soong.shared.tools.pipeline import RunScope, ToolPipeline
from soong.shared.tools.ports import ToolCall
from soong.shared.tools.registry import ToolRegistry
from soong.shared.tools.result import ErrorType, ToolResult
from soong.shared.toolsets.agents import LookingTools
from tests.model.builders import make_session, make_task, make_worker, open_session, open_worker
from tests.model.clock import FakeClock
from tests.model.memory.store import MemoryStore
from tests.unit.agents.parts import Notebook, RuleGate

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
    advance = await store.claims.advance(
        worker_id, [], claim=1, pools=["default"], capabilities=[], live_workers=2, now_us=clock.now_us()
    )
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
    await parent.store.claims.advance(
        "wrk_1", [], claim=3, pools=["default"], capabilities=[], live_workers=1, now_us=FakeClock().now_us()
    )
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
    assert own.error is not None
    assert own.error.type is ErrorType.INVALID_INPUT
    assert "you have started no run" in own.error.message


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
