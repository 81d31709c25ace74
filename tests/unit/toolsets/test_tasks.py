"""A child sees what is ready and touches only what is its own (ETS-07)."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import pytest
from msgspec.structs import replace

from soong.shared.core.errors import LeaseLostError
from soong.shared.core.jsontext import JsonObject
from soong.shared.engine.tasks.spec import StepKind
from soong.shared.engine.tasks.step import Claim
from soong.shared.tools.definition import Permission, RunDirs
from soong.shared.tools.pipeline import RunScope, ToolPipeline
from soong.shared.tools.ports import ToolCall
from soong.shared.tools.registry import ToolRegistry
from soong.shared.tools.result import ErrorType, ToolResult
from soong.shared.tools.risk import effective_traits
from soong.shared.tools.surface import CHILD_TASK_TOOLS
from soong.shared.toolsets.tasks.own import TaskTools
from tests.model.builders import make_session, make_step, open_session, open_task, open_worker, take_turn
from tests.model.clock import FakeClock
from tests.model.memory.store import MemoryStore
from tests.unit.agents.parts import Notebook, RuleGate


@dataclass
class Child:
    """A claimed step's run with the task tools as its surface."""

    store: MemoryStore
    claim: Claim
    tools: TaskTools
    gate: RuleGate

    async def call(self, tool: str, **arguments: Any) -> ToolResult:
        place = RunDirs(Path("/p"), Path("/p"), Path("/r"))
        scope = RunScope(self.claim.identity, self.claim.fence, place)
        registry = ToolRegistry()
        registry.add(self.tools, is_builtin=True)
        pipeline = ToolPipeline(registry.select(sorted(CHILD_TASK_TOOLS)), scope, self.gate, Notebook())
        return await pipeline.execute(ToolCall("c1", f"agent.task_{tool}", cast(JsonObject, arguments)))


@pytest.fixture
async def child() -> Child:
    store, clock = MemoryStore(), FakeClock()
    ownership = await open_session(store, make_session(owner_id="own_1"))
    worker_id = await open_worker(store)
    kinds = {"a": StepKind.AGENT, "b": StepKind.AGENT, "f": StepKind.PYTHON, "c": StepKind.AGENT}
    await open_task(store, ownership, *(make_step(name, kind=kind) for name, kind in kinds.items()))
    advance = await take_turn(store, worker_id, now_us=clock.now_us())
    return Child(store, advance.claims[0], TaskTools(store, lambda: worker_id, clock), RuleGate())


@pytest.mark.spec("DAG-01.c", "DAG-01.d", "DAG-01.e")
def test_the_four_tools_are_readonly_and_those_that_change_state_run_alone(child: Child) -> None:
    tools = {tool.name: tool for tool in child.tools.tools()}

    assert tools.keys() == CHILD_TASK_TOOLS
    assert {tool.permission for tool in tools.values()} == {Permission.READONLY}
    alone = {name for name, tool in tools.items() if not effective_traits(tool, {}).is_concurrency_safe}
    assert alone == {"agent.task_claim_step", "agent.task_update_step"}


@pytest.mark.spec("ETS-07.a", "DAG-01.c")
async def test_a_child_sees_its_own_and_the_ready_steps_that_are_agents_work(child: Child) -> None:
    data = cast("dict[str, Any]", (await child.call("query_steps")).data)

    assert data["yours"]["id"] == "a"
    assert [step["id"] for step in data["ready"]] == ["b", "c"]


async def test_claiming_the_own_step_again_changes_nothing(child: Child) -> None:
    result = await child.call("claim_step", step_id="a")

    assert result.ok
    assert (await child.store.tasks.step(child.claim.step_key)).fence == child.claim.fence


@pytest.mark.spec("ETS-07.b")
@pytest.mark.parametrize(
    ("tool", "arguments", "error"),
    [
        pytest.param("claim_step", {"step_id": "b"}, ErrorType.STEP_NOT_CLAIMABLE, id="claim-another"),
        pytest.param("update_step", {"step_id": "b", "progress": "x"}, ErrorType.STEP_NOT_CLAIMED, id="update-another"),
        pytest.param("update_step", {"progress": ""}, ErrorType.INVALID_INPUT, id="empty-progress"),
        pytest.param("update_step", {"progress": "x", "fence": 9}, ErrorType.INVALID_INPUT, id="fence-is-no-argument"),
    ],
)
async def test_what_is_not_its_own_is_refused(child: Child, tool: str, arguments: Any, error: ErrorType) -> None:
    result = await child.call(tool, **arguments)

    assert result.error is not None
    assert result.error.type is error


@pytest.mark.spec("DAG-03.b")
async def test_progress_of_a_lease_that_is_lost_is_refused(child: Child) -> None:
    stale = Child(child.store, child.claim, TaskTools(child.store, lambda: "wrk_other", FakeClock()), child.gate)

    with pytest.raises(LeaseLostError):
        await stale.call("update_step", progress="late")


async def test_a_run_without_a_step_has_none_to_show(child: Child) -> None:
    identity = replace(child.claim.identity, step_key="", task_id="")
    scope = RunScope(identity, 1, RunDirs(Path("/p"), Path("/p"), Path("/r")))
    pipeline = ToolPipeline(child.tools.tools(), scope, child.gate, Notebook())

    result = await pipeline.execute(ToolCall("c1", "agent.task_get", {}))

    assert result.error is not None
    assert result.error.type is ErrorType.STEP_NOT_CLAIMED
