import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

import pytest
from msgspec import structs

from soong.shared.core.errors import LeaseLostError
from soong.shared.core.jsontext import Json, JsonObject
from soong.shared.core.timing import SystemClock
from soong.shared.engine.sessions.session import Ownership
from soong.shared.engine.tasks.change import TaskChange
from soong.shared.engine.tasks.spec import ClaimMode, StepKind, StepStatus
from soong.shared.engine.tasks.step import Claim, Lease, Step
from soong.shared.engine.wire.bus import MemoryBus
from soong.shared.tools.definition import RunDirs
from soong.shared.tools.pipeline import RunScope, ToolPipeline
from soong.shared.tools.ports import ToolCall
from soong.shared.tools.registry import ToolRegistry
from soong.shared.tools.result import ErrorType, ToolFailure, ToolResult
from soong.shared.tools.surface import CHILD_TASK_TOOLS
from soong.shared.toolsets.tasks.own import TaskTools
from soong.worker.claim_loop import ClaimLoop
from soong.worker.heartbeat import Incarnation
from soong.worker.held_runs import AdditionalSteps
from tests.model.builders import make_session, make_step, make_task, open_session
from tests.model.memory.store import MemoryStore
from tests.unit.agents.parts import Notebook, RuleGate
from tests.unit.tools.parts import error_of
from tests.waiting import looks, until

pytestmark = pytest.mark.spec("DAG-01", "DAG-03")

SCHEMA: Json = {"type": "object", "required": ["n"], "properties": {"n": {"type": "integer"}}}


def pulled(step_id: str, **spec: Json) -> Any:
    return make_step(step_id, kind=StepKind.AGENT, claim_mode=ClaimMode.PULL, spec={"v": 1, **spec})


@dataclass
class Child:
    """A claimed step's run with the task tools, in a worker's process without slots."""

    store: MemoryStore
    ownership: Ownership
    claim_loop: ClaimLoop
    additional: AdditionalSteps
    tools: TaskTools
    claim: Claim
    gate: RuleGate = field(default_factory=RuleGate)
    calls: int = 0

    async def call(self, tool: str, **arguments: Any) -> ToolResult:
        self.calls += 1
        scope = RunScope(self.claim.identity, self.claim.fence, RunDirs(Path("/p"), Path("/p"), Path("/r")))
        registry = ToolRegistry()
        registry.add(self.tools, is_builtin=True)
        pipeline = ToolPipeline(registry.select(sorted(CHILD_TASK_TOOLS)), scope, self.gate, Notebook())
        return await pipeline.execute(ToolCall(f"c{self.calls}", f"agent.task_{tool}", cast(JsonObject, arguments)))

    async def do(self, tool: str, **arguments: Any) -> dict[str, Any]:
        result = await self.call(tool, **arguments)
        assert result.error is None, result.error
        return cast("dict[str, Any]", result.data)

    async def refused(self, tool: str, **arguments: Any) -> ToolFailure:
        result = await self.call(tool, **arguments)
        return error_of(result)

    async def step(self, step_id: str) -> Step:
        steps = await self.store.tasks.steps(self.claim.identity.task_id)
        return next(step for step in steps if step.step_id == step_id)

    async def cancel(self, step_id: str) -> None:
        """Cancel a step as its owner does, and let the worker look."""
        stop = TaskChange(cancelled=((await self.step(step_id)).key,), reason="not needed")
        await self.store.tasks.update_task(self.ownership, self.claim.identity.task_id, stop, now_us=1)
        for interrupt in await self.store.claims.interrupts(self.claim_loop.capacity().worker_id):
            await self.additional.interrupt(interrupt)


@pytest.fixture
async def child() -> AsyncIterator[Child]:
    store, clock, board = MemoryStore(), SystemClock(), MemoryBus()
    incarnation = Incarnation(store, clock, "w@h", 2, ("default",), ())
    further = AdditionalSteps()
    claim_loop = ClaimLoop(store, board, clock, incarnation.capacity, lambda: 0, lambda _claim: None)
    further.claim_loop = claim_loop
    ownership = await open_session(store, make_session(owner_id="own_1"))
    await incarnation.register()
    steps = (
        make_step("own", kind=StepKind.AGENT),
        pulled("one", instructions="Count ${inputs.what}.", inputs={"of": "${inputs.what}"}, output=SCHEMA),
        pulled("two"),
        make_step("after", depends_on=["one"], kind=StepKind.AGENT),
        make_step("function"),
    )
    await store.tasks.create_task(make_task(ownership.session_id, *steps, inputs={"what": "files"}))
    pumping = asyncio.get_running_loop().create_task(claim_loop.run())
    claim = await claim_loop.next_step(None)
    assert claim is not None
    tools = TaskTools(store, lambda: incarnation.worker_id, clock, str, further)
    yield Child(store, ownership, claim_loop, further, tools, claim)
    pumping.cancel()


@pytest.mark.spec("ETS-07.a", "DAG-01.c")
async def test_it_sees_its_own_and_the_ready_steps_that_are_agents_work(child: Child) -> None:
    seen = await child.do("query_steps")

    assert seen["yours"]["id"] == "own"
    assert [step["id"] for step in seen["ready"]] == ["one", "two"]


@pytest.mark.spec("ETS-07.b")
async def test_claiming_the_own_step_again_changes_nothing_and_that_of_another_run_or_none_is_refused(
    child: Child,
) -> None:
    await child.do("claim_step", step_id="own")

    assert (await child.step("own")).fence == child.claim.fence

    error = await child.refused("update_step", step_id="function", progress="mine")

    assert error.type is ErrorType.STEP_NOT_CLAIMED

    identity = structs.replace(child.claim.identity, step_key="", task_id="")

    error = await replace(child, claim=structs.replace(child.claim, identity=identity)).refused("get")

    assert error.type is ErrorType.STEP_NOT_CLAIMED


@pytest.mark.spec("DAG-03.b")
async def test_progress_of_a_lease_that_is_lost_is_refused(child: Child) -> None:
    stale = replace(child, tools=TaskTools(child.store, lambda: "wrk_other", SystemClock()))

    with pytest.raises(LeaseLostError):
        await stale.call("update_step", progress="late")


@pytest.mark.spec("DAG-03.f")
async def test_a_failure_that_it_reports_is_the_steps(child: Child) -> None:
    await child.do("claim_step", step_id="one")

    await child.do("update_step", step_id="one", failure="there are no files")

    one = await child.step("one")
    assert one.status is StepStatus.FAILED
    assert one.error is not None
    assert one.error.message == "there are no files"


async def test_an_output_that_breaks_the_schema_is_refused_and_the_step_stays_its_own(child: Child) -> None:
    await child.do("claim_step", step_id="one")

    error = await child.refused("update_step", step_id="one", output={"n": "three"})

    assert error.type is ErrorType.INVALID_OUTPUT
    assert (await child.step("one")).status is StepStatus.RUNNING
    await child.do("update_step", output={"n": 3})


async def test_without_an_id_a_report_is_of_the_step_that_was_claimed(child: Child) -> None:
    await child.do("claim_step", step_id="two")
    await child.do("update_step", progress="half")
    await child.do("update_step", step_id="own", progress="working on two")

    assert ((await child.step("two")).progress, (await child.step("own")).progress) == ("half", "working on two")


@pytest.mark.spec("DAG-01.c", "DAG-03.d")
async def test_what_it_holds_is_shown_and_claimed_again_without_harm_and_named_to_a_second_claim(child: Child) -> None:
    await child.do("claim_step", step_id="one")
    again = (await child.do("claim_step", step_id="one"))["claimed"]
    shown = await child.do("get", step_id="one")
    error = await child.refused("claim_step", step_id="two")

    assert again["instructions"] == shown["claimed"]["instructions"] == "Count files."
    assert (await child.step("one")).fence == 1
    assert (await child.do("query_steps"))["claimed"] == "one"
    assert (error.type, "'one'" in error.message) == (ErrorType.STEP_NOT_CLAIMABLE, True)
    assert "agent.task_update_step" in (error.hint or "")


@pytest.mark.parametrize(
    ("step_id", "reason", "hint"),
    [
        pytest.param("nothing", "unknown", "task_query_steps", id="unknown"),
        pytest.param("function", "not_for_agents", "task_query_steps", id="python"),
        pytest.param("after", "not_ready", "task_query_steps", id="not-ready"),
    ],
)
async def test_a_step_that_it_may_not_have_is_refused_with_what_to_do(
    child: Child, step_id: str, reason: str, hint: str
) -> None:
    error = await child.refused("claim_step", step_id=step_id)

    assert error.type is ErrorType.STEP_NOT_CLAIMABLE
    assert (error.details or {})["reason"] == reason
    assert hint in (error.hint or "")


@pytest.mark.parametrize(
    "arguments",
    [
        pytest.param({}, id="nothing"),
        pytest.param({"output": 1, "failure": "x"}, id="both"),
        pytest.param({"output": 1, "progress": "x"}, id="result-and-progress"),
        pytest.param({"output": 1, "fence": 7}, id="a-fence"),
        pytest.param({"step_id": "own", "output": 1}, id="the-own-steps-result"),
        pytest.param({"progress": ""}, id="empty-progress"),
    ],
)
async def test_a_report_that_cannot_be_one_is_refused(child: Child, arguments: dict[str, Json]) -> None:
    await child.do("claim_step", step_id="two")

    error = await child.refused("update_step", **arguments)

    assert error.type is ErrorType.INVALID_INPUT
    assert (await child.step("two")).status is StepStatus.RUNNING


@pytest.mark.spec("DAG-06")
async def test_a_step_that_was_cancelled_is_named_at_the_next_report(child: Child) -> None:
    await child.do("claim_step", step_id="one")
    await child.cancel("one")

    error = await child.refused("update_step", step_id="one", output={"n": 1})

    assert error.type is ErrorType.LEASE_LOST
    assert "cancelled: not needed" in error.message
    assert (await child.step("one")).status is StepStatus.CANCELLED
    await child.do("claim_step", step_id="two")


async def test_one_that_believes_to_hold_a_step_after_an_interruption_is_asked_to_claim_it_again(child: Child) -> None:
    await child.do("claim_step", step_id="one")
    for lease in child.additional.leases_of(child.claim):
        await child.store.claims.release(child.claim_loop.capacity().worker_id, [lease], reason="drain", now_us=1)

    error = await child.refused("update_step", step_id="one", output={"n": 1})

    assert error.type is ErrorType.STEP_NOT_CLAIMED
    assert "claim it again" in (error.hint or "")
    await child.do("claim_step", step_id="one")
    await child.do("update_step", step_id="one", output={"n": 1})


async def test_a_report_that_the_rows_refuse_does_not_count(child: Child) -> None:
    await child.do("claim_step", step_id="two")
    taken = child.additional.held_by(Lease(child.claim.step_key, child.claim.identity.run_id, child.claim.fence))
    assert taken is not None
    lease = Lease(taken.step_key, taken.identity.run_id, taken.fence)
    await child.store.claims.release(child.claim_loop.capacity().worker_id, [lease], reason="expired", now_us=1)

    error = await child.refused("update_step", step_id="two", output="late")

    assert error.type is ErrorType.LEASE_LOST
    assert "it is ready" in error.message
    assert (await child.step("two")).output is None


@pytest.mark.spec("ETS-07.b")
async def test_where_no_run_is_held_no_additional_step_is_given(child: Child) -> None:
    alone = TaskTools(child.store, lambda: child.claim_loop.capacity().worker_id, SystemClock())
    elsewhere = Child(child.store, child.ownership, child.claim_loop, child.additional, alone, child.claim)

    error = await elsewhere.refused("claim_step", step_id="one")

    assert error.type is ErrorType.STEP_NOT_CLAIMABLE


async def test_a_report_under_way_counts_although_the_run_is_stopped_meanwhile(child: Child) -> None:
    await child.do("claim_step", step_id="two")
    own = Lease(child.claim.step_key, child.claim.identity.run_id, child.claim.fence)
    reporting = asyncio.get_running_loop().create_task(child.call("update_step", step_id="two", output="done"))
    await until(lambda: child.additional.held_by(own) is None, 10)
    reporting.cancel()
    await asyncio.gather(reporting, return_exceptions=True)

    assert child.additional.leases_of(child.claim) == ()
    async for _ in looks(10):
        if (await child.step("two")).status.is_terminal:
            break
    assert (await child.step("two")).output == "done"
