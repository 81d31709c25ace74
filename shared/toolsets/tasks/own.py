"""The task tools that every agent has (DAG-01, ETS-07): a child's task, its own step, and what else is ready.

A child sees ready steps and reads, claims and updates its own. The fence comes from the run's lease and is never an
argument. One who plans (main, orchestrator) reads any task of its session with the same tools, and claims none.
"""

from collections.abc import Callable, Sequence

from soong.shared.core.clock import Clock
from soong.shared.core.jsontext import Json, JsonObject
from soong.shared.core.value import Value
from soong.shared.engine.tasks.failure_report import tools_of
from soong.shared.engine.tasks.functions import suggestion
from soong.shared.engine.tasks.service import Ledger
from soong.shared.engine.tasks.status import StepStatus
from soong.shared.engine.tasks.step import Claim, Lease, Step
from soong.shared.tools.definition import HandlerOutput, Permission, ToolContext, ToolDefinition
from soong.shared.tools.result import ErrorType, ToolError
from soong.shared.tools.surface import Surface
from soong.shared.toolsets.tasks.claiming import AdditionalClaims, ClaimTools, own_step, step_id_of, work_of
from soong.shared.toolsets.tasks.showing import (
    MAX_SHOWN_STEPS,
    STEP_ID,
    TAGS,
    TASK_ID,
    result_facts,
    step_facts,
    step_line,
    task_facts,
    task_named,
)


class TaskTools(Value):
    """A :class:`soong.shared.tools.definition.ToolAdapter` over the task store. ``worker_id`` names the lease's holder.

    ``shown`` takes secrets out of what is stored for people (EVT-05). ``claims`` are what runs of this process hold
    besides their own steps; without them no additional step is given.
    """

    store: Ledger
    worker_id: Callable[[], str]
    clock: Clock
    shown: Callable[[str], str] = str
    claims: AdditionalClaims | None = None

    def tools(self) -> tuple[ToolDefinition, ...]:
        claiming = ClaimTools(self.store, self.worker_id, self.clock, self.shown, self.claims)
        return (self._get_tool(), self._query_tool(), *claiming.tools())

    def _get_tool(self) -> ToolDefinition:
        return ToolDefinition(
            name="agent.task_get",
            title="Get task",
            description="Show the task you work on: its title, status, the states of its steps, and your own step. "
            "One who plans may name a task, and a step of it for its result.",
            search_hint="task status progress result",
            input_schema={
                "type": "object",
                "properties": {
                    "task_id": TASK_ID,
                    "step_id": {**STEP_ID, "description": "A step, for its result."},
                },
            },
            handler=self._get,
            permission=Permission.READONLY,
            tags=TAGS,
            errors=(ErrorType.STEP_NOT_CLAIMED,),
        )

    def _query_tool(self) -> ToolDefinition:
        return ToolDefinition(
            name="agent.task_query_steps",
            title="Query steps",
            description="List the steps of your task that are ready to be claimed, and what you hold. "
            "One who plans sees the steps of any status.",
            search_hint="steps ready open work",
            input_schema={
                "type": "object",
                "properties": {
                    "task_id": TASK_ID,
                    "statuses": {
                        "type": "array",
                        "items": {"type": "string", "enum": [status.value for status in StepStatus]},
                        "description": "Only these, for one who plans; a child sees what is ready.",
                    },
                },
            },
            handler=self._query,
            permission=Permission.READONLY,
            tags=TAGS,
            errors=(ErrorType.STEP_NOT_CLAIMED,),
        )

    async def _get(self, context: ToolContext, call_input: JsonObject) -> HandlerOutput:
        if not context.identity.role.is_child:
            return await self._get_any(context, call_input)
        own = await own_step(self.store.tasks, context, call_input)
        claimed = self._claimed(context)
        asked = str(call_input.get("step_id", own.step_id))
        if asked not in (own.step_id, "" if claimed is None else step_id_of(claimed)):
            raise ToolError(ErrorType.STEP_NOT_CLAIMED, f"step {asked[:80]!r} is not yours: you hold {own.step_id!r}")
        task = await self.store.tasks.task(own.task_id)
        facts = task_facts(task, await self.store.tasks.counts(own.task_id))
        facts["your_step"] = {**step_line(own), "progress": own.progress, "attempt": own.attempt}
        return facts if claimed is None else {**facts, "claimed": work_of(claimed)}

    async def _query(self, context: ToolContext, call_input: JsonObject) -> HandlerOutput:
        if not context.identity.role.is_child:
            return await self._query_any(context, call_input)
        own = await own_step(self.store.tasks, context, call_input)
        claimed = self._claimed(context)
        steps = await self.store.tasks.steps(own.task_id)
        ready = [step for step in steps if step.status is StepStatus.READY and _is_agents_work(step)]
        shown: list[Json] = [step_line(step) for step in ready[:MAX_SHOWN_STEPS]]
        held: dict[str, Json] = {"yours": step_line(own)}
        if claimed is not None:
            held["claimed"] = step_id_of(claimed)
        return {**held, "ready": shown, "truncated": len(ready) > MAX_SHOWN_STEPS}

    def _claimed(self, context: ToolContext) -> Claim | None:
        """Return the additional step of the run."""
        identity = context.identity
        held = Lease(identity.step_key, identity.run_id, context.fence)
        return None if self.claims is None else self.claims.held_by(held)

    async def _get_any(self, context: ToolContext, call_input: JsonObject) -> HandlerOutput:
        task = await task_named(self.store.tasks, context, call_input)
        asked = str(call_input.get("step_id", ""))
        steps = await self.store.tasks.steps(task.id)
        ids = {step.key: step.step_id for step in steps}
        if asked:
            step = _found(asked, steps)
            facts = {**step_facts(step, ids), **result_facts(await self.store.tasks.result(step.key))}
            return {**facts, "tools": await self._tools(step)} if step.kind.traits.is_agent else facts
        shown: list[Json] = [step_facts(step, ids) for step in steps[:MAX_SHOWN_STEPS]]
        facts = task_facts(task, await self.store.tasks.counts(task.id))
        return {**facts, "each": shown, "truncated": len(steps) > MAX_SHOWN_STEPS}

    async def _tools(self, step: Step) -> Json:
        surface = (await self.store.runs.run(step.run_id)).surface
        return tools_of(step, Surface.from_json(surface).tools if surface else ())

    async def _query_any(self, context: ToolContext, call_input: JsonObject) -> HandlerOutput:
        task = await task_named(self.store.tasks, context, call_input)
        wanted = call_input.get("statuses") or [StepStatus.READY.value]
        steps = await self.store.tasks.steps(task.id)
        ids = {step.key: step.step_id for step in steps}
        found = [step for step in steps if isinstance(wanted, list) and step.status.value in wanted]
        shown: list[Json] = [step_facts(step, ids) for step in found[:MAX_SHOWN_STEPS]]
        return {"task": task.id, "steps": shown, "truncated": len(found) > MAX_SHOWN_STEPS}


def _is_agents_work(step: Step) -> bool:
    return step.kind.traits.is_agent and not step.is_pull_worker


def _found(step_id: str, steps: Sequence[Step]) -> Step:
    step = next((step for step in steps if step.step_id == step_id), None)
    if step is None:
        known = frozenset(step.step_id for step in steps)
        raise ToolError(
            ErrorType.INVALID_INPUT, f"the task has no step {step_id[:80]!r}", hint=suggestion(step_id, known)
        )
    return step
