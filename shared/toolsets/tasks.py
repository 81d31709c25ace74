"""The task tools of a child agent (DAG-01, ETS-07): its task, its own step, and what else is ready.

A child sees ready steps and reads, claims and updates its own. The fence comes from the run's lease and is never an
argument. Writing a step is core state, not an outside effect: all four are readonly and none is asked.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from shared.clock import Clock
from shared.jsontext import Json, JsonObject
from shared.tasks.status import StepStatus
from shared.tasks.step import Held, Step
from shared.tasks.store import TaskStore
from shared.tools.definition import HandlerOutput, Permission, ToolContext, ToolDefinition, Traits
from shared.tools.result import ErrorType, ToolError

MAX_PROGRESS_CHARS: Final = 500
MAX_SHOWN_STEPS: Final = 100

_TAGS = frozenset({"internal", "agent", "readonly"})
_STEP_ID: JsonObject = {
    "type": "string",
    "description": "Id of the step in its task.",
    "minLength": 1,
    "maxLength": 200,
}


@dataclass(frozen=True, slots=True)
class TaskTools:
    """A :class:`shared.tools.definition.ToolAdapter` over the task store. ``worker_id`` names the lease's holder.

    ``shown`` takes secrets out of what is stored for people (EVT-05).
    """

    store: TaskStore
    worker_id: Callable[[], str]
    clock: Clock
    shown: Callable[[str], str] = str

    def tools(self) -> tuple[ToolDefinition, ...]:
        return (
            ToolDefinition(
                name="agent.task_get",
                title="Get task",
                description="Show the task you work on: its title, status, how its steps stand, and your own step.",
                search_hint="task status progress",
                input_schema={"type": "object", "properties": {}},
                handler=self._get,
                permission=Permission.READONLY,
                tags=_TAGS,
                errors=(ErrorType.STEP_NOT_CLAIMED,),
            ),
            ToolDefinition(
                name="agent.task_query_steps",
                title="Query steps",
                description="List the steps of your task that are ready to be claimed, and the one that is yours.",
                search_hint="steps ready open work",
                input_schema={"type": "object", "properties": {}},
                handler=self._query,
                permission=Permission.READONLY,
                tags=_TAGS,
                errors=(ErrorType.STEP_NOT_CLAIMED,),
            ),
            ToolDefinition(
                name="agent.task_claim_step",
                title="Claim step",
                description="Claim a step of your task. Your own step is yours already: claiming it again is harmless.",
                search_hint="claim take step",
                input_schema={"type": "object", "properties": {"step_id": _STEP_ID}, "required": ["step_id"]},
                handler=self._claim,
                permission=Permission.READONLY,
                tags=_TAGS,
                errors=(ErrorType.STEP_NOT_CLAIMED, ErrorType.STEP_NOT_CLAIMABLE),
                traits=_changes_state,
            ),
            ToolDefinition(
                name="agent.task_update_step",
                title="Update step",
                description="Record how far you are with your step, in one line. Its result is your final answer.",
                search_hint="progress update step",
                input_schema={
                    "type": "object",
                    "properties": {
                        "step_id": _STEP_ID,
                        "progress": {"type": "string", "minLength": 1, "maxLength": MAX_PROGRESS_CHARS},
                    },
                    "required": ["progress"],
                },
                handler=self._update,
                permission=Permission.READONLY,
                tags=_TAGS,
                errors=(ErrorType.STEP_NOT_CLAIMED,),
                traits=_changes_state,
            ),
        )

    async def _get(self, context: ToolContext, _call_input: JsonObject) -> HandlerOutput:
        own = await self._own(context)
        task = await self.store.task(own.task_id)
        counts = await self.store.counts(own.task_id)
        by_status: dict[str, Json] = {status.value: count for status, count in counts.by_status.items()}
        return {
            "id": task.id,
            "title": task.title,
            "status": task.status.value,
            "steps": by_status,
            "your_step": {**_shown(own), "progress": own.progress, "attempt": own.attempt},
        }

    async def _query(self, context: ToolContext, _call_input: JsonObject) -> HandlerOutput:
        own = await self._own(context)
        steps = await self.store.steps(own.task_id)
        ready = [step for step in steps if step.status is StepStatus.READY]
        shown: list[Json] = [_shown(step) for step in ready[:MAX_SHOWN_STEPS]]
        return {"yours": _shown(own), "ready": shown, "truncated": len(ready) > MAX_SHOWN_STEPS}

    async def _claim(self, context: ToolContext, call_input: JsonObject) -> HandlerOutput:
        own = await self._own(context)
        asked = str(call_input["step_id"])
        if asked == own.step_id:
            return {"claimed": _shown(own)}
        raise ToolError(
            ErrorType.STEP_NOT_CLAIMABLE,
            f"step {asked[:80]!r} cannot be claimed: you were given the step {own.step_id!r} and hold it",
            hint="finish your step; other workers take the ones that are ready",
        )

    async def _update(self, context: ToolContext, call_input: JsonObject) -> HandlerOutput:
        own = await self._own(context)
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

    async def _own(self, context: ToolContext) -> Step:
        if not context.identity.step_key:
            raise ToolError(ErrorType.STEP_NOT_CLAIMED, "this run has no step", hint="only a worker's run has one")
        return await self.store.step(context.identity.step_key)


def _changes_state(_call_input: JsonObject) -> Traits:
    return Traits(is_read_only=True, is_concurrency_safe=False)


def _shown(step: Step) -> dict[str, Json]:
    return {"id": step.step_id, "title": step.title, "kind": step.kind.value, "status": step.status.value}
