"""The task tools that every agent has (DAG-01, ETS-07): a child's task, its own step, and what else is ready.

A child sees ready steps and reads, claims and updates its own. The fence comes from the run's lease and is never an
argument. One who plans (main, orchestrator) reads any task of its session with the same tools, and claims none.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from shared.clock import Clock
from shared.jsontext import Json, JsonObject
from shared.runs.store import RunStore
from shared.tasks.functions import suggestion
from shared.tasks.outcomes import tools_of
from shared.tasks.status import StepStatus
from shared.tasks.step import Held, Step, StepKind
from shared.tasks.store import TaskStore
from shared.tools.definition import HandlerOutput, Permission, ToolContext, ToolDefinition
from shared.tools.result import ErrorType, ToolError
from shared.toolsets.tasks.showing import (
    MAX_SHOWN_STEPS,
    STEP_ID,
    TAGS,
    TASK_ID,
    changes_state,
    result_facts,
    step_facts,
    step_line,
    task_facts,
    task_named,
)

MAX_PROGRESS_CHARS: Final = 500


class TaskRows(TaskStore, RunStore, Protocol):
    """The rows that the tools read, and write a step's progress to."""


@dataclass(frozen=True, slots=True)
class TaskTools:
    """A :class:`shared.tools.definition.ToolAdapter` over the task store. ``worker_id`` names the lease's holder.

    ``shown`` takes secrets out of what is stored for people (EVT-05).
    """

    store: TaskRows
    worker_id: Callable[[], str]
    clock: Clock
    shown: Callable[[str], str] = str

    def tools(self) -> tuple[ToolDefinition, ...]:
        return (self._get_tool(), self._query_tool(), self._claim_tool(), self._update_tool())

    def _get_tool(self) -> ToolDefinition:
        return ToolDefinition(
            name="agent.task_get",
            title="Get task",
            description="Show the task you work on: its title, status, how its steps stand, and your own step. "
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
            description="List the steps of your task that are ready to be claimed, and the one that is yours. "
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

    def _claim_tool(self) -> ToolDefinition:
        return ToolDefinition(
            name="agent.task_claim_step",
            title="Claim step",
            description="Claim a step of your task. Your own step is yours already: claiming it again is harmless.",
            search_hint="claim take step",
            input_schema={"type": "object", "properties": {"step_id": STEP_ID}, "required": ["step_id"]},
            handler=self._claim,
            permission=Permission.READONLY,
            tags=TAGS,
            errors=(ErrorType.STEP_NOT_CLAIMED, ErrorType.STEP_NOT_CLAIMABLE),
            traits=changes_state,
        )

    def _update_tool(self) -> ToolDefinition:
        return ToolDefinition(
            name="agent.task_update_step",
            title="Update step",
            description="Record how far you are with your step, in one line. Its result is your final answer.",
            search_hint="progress update step",
            input_schema={
                "type": "object",
                "properties": {
                    "step_id": STEP_ID,
                    "progress": {"type": "string", "minLength": 1, "maxLength": MAX_PROGRESS_CHARS},
                },
                "required": ["progress"],
            },
            handler=self._update,
            permission=Permission.READONLY,
            tags=TAGS,
            errors=(ErrorType.STEP_NOT_CLAIMED,),
            traits=changes_state,
        )

    async def _get(self, context: ToolContext, call_input: JsonObject) -> HandlerOutput:
        if not context.identity.role.is_child:
            return await self._get_any(context, call_input)
        own = await self._own(context, call_input)
        asked = str(call_input.get("step_id", own.step_id))
        if asked != own.step_id:
            raise ToolError(ErrorType.STEP_NOT_CLAIMED, f"step {asked[:80]!r} is not yours: you hold {own.step_id!r}")
        task = await self.store.task(own.task_id)
        facts = task_facts(task, await self.store.counts(own.task_id))
        return {**facts, "your_step": {**step_line(own), "progress": own.progress, "attempt": own.attempt}}

    async def _query(self, context: ToolContext, call_input: JsonObject) -> HandlerOutput:
        if not context.identity.role.is_child:
            return await self._query_any(context, call_input)
        own = await self._own(context, call_input)
        steps = await self.store.steps(own.task_id)
        ready = [step for step in steps if step.status is StepStatus.READY]
        shown: list[Json] = [step_line(step) for step in ready[:MAX_SHOWN_STEPS]]
        return {"yours": step_line(own), "ready": shown, "truncated": len(ready) > MAX_SHOWN_STEPS}

    async def _get_any(self, context: ToolContext, call_input: JsonObject) -> HandlerOutput:
        task = await task_named(self.store, context, call_input)
        asked = str(call_input.get("step_id", ""))
        steps = await self.store.steps(task.id)
        ids = {step.key: step.step_id for step in steps}
        if asked:
            step = _found(asked, steps)
            facts = {**step_facts(step, ids), **result_facts(await self.store.result(step.key))}
            return {**facts, "tools": await self._tools(step)} if step.kind is StepKind.AGENT else facts
        shown: list[Json] = [step_facts(step, ids) for step in steps[:MAX_SHOWN_STEPS]]
        facts = task_facts(task, await self.store.counts(task.id))
        return {**facts, "each": shown, "truncated": len(steps) > MAX_SHOWN_STEPS}

    async def _tools(self, step: Step) -> Json:
        return tools_of(step, (await self.store.run(step.run_id)).surface)

    async def _query_any(self, context: ToolContext, call_input: JsonObject) -> HandlerOutput:
        task = await task_named(self.store, context, call_input)
        wanted = call_input.get("statuses") or [StepStatus.READY.value]
        steps = await self.store.steps(task.id)
        ids = {step.key: step.step_id for step in steps}
        found = [step for step in steps if isinstance(wanted, list) and step.status.value in wanted]
        shown: list[Json] = [step_facts(step, ids) for step in found[:MAX_SHOWN_STEPS]]
        return {"task": task.id, "steps": shown, "truncated": len(found) > MAX_SHOWN_STEPS}

    async def _claim(self, context: ToolContext, call_input: JsonObject) -> HandlerOutput:
        own = await self._own(context, call_input)
        asked = str(call_input["step_id"])
        if asked == own.step_id:
            return {"claimed": step_line(own)}
        raise ToolError(
            ErrorType.STEP_NOT_CLAIMABLE,
            f"step {asked[:80]!r} cannot be claimed: you were given the step {own.step_id!r} and hold it",
            hint="finish your step; other workers take the ones that are ready",
        )

    async def _update(self, context: ToolContext, call_input: JsonObject) -> HandlerOutput:
        own = await self._own(context, call_input)
        asked = str(call_input.get("step_id", own.step_id))
        if asked != own.step_id:
            raise ToolError(
                ErrorType.STEP_NOT_CLAIMED,
                f"step {asked[:80]!r} is not yours: you hold {own.step_id!r}",
                hint="leave step_id out to update your own step",
            )
        progress = self.shown(" ".join(str(call_input["progress"]).split()))
        held = Held(own.key, context.identity.run_id, context.fence)
        await self.store.report_progress(self.worker_id(), held, progress, now_us=self.clock.now_us())
        return {"step": own.step_id, "progress": progress}

    async def _own(self, context: ToolContext, call_input: JsonObject) -> Step:
        """Return the step that the run holds. Raises: ToolError when it has none, or names a task that is not its."""
        if not context.identity.step_key:
            raise ToolError(ErrorType.STEP_NOT_CLAIMED, "this run has no step", hint="only a worker's run has one")
        own = await self.store.step(context.identity.step_key)
        asked = str(call_input.get("task_id", own.task_id))
        if asked != own.task_id:
            problem = f"task {asked[:80]!r} is not yours: your step is of {own.task_id}"
            raise ToolError(ErrorType.STEP_NOT_CLAIMED, problem, hint="leave task_id out")
        return own


def _found(step_id: str, steps: Sequence[Step]) -> Step:
    step = next((step for step in steps if step.step_id == step_id), None)
    if step is None:
        known = frozenset(step.step_id for step in steps)
        raise ToolError(
            ErrorType.INVALID_INPUT, f"the task has no step {step_id[:80]!r}", hint=suggestion(step_id, known)
        )
    return step
