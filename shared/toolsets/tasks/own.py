"""The task tools that every agent has (DAG-01, DAG-03, ETS-07): a child's task, its own step, and what else is ready.

A child sees ready steps and reads, claims and updates its own: the one that its worker claimed for it, and one more at
a time. It names steps only by their ids: fence, worker and run come from what it holds. Progress and failure may be
reported of any step it holds, a result only of an additional one, which ends with it. Its own step's result is its
final answer; a failure of its own step ends its run. One who plans (main, orchestrator) reads any task of its session
with the same tools, and claims none.
"""

from collections.abc import Callable, Sequence
from typing import Final, Protocol

from soong.shared.agents.ports import GIVEN_UP
from soong.shared.core.jsontext import Json, JsonObject
from soong.shared.core.timing import Clock
from soong.shared.core.value import Value
from soong.shared.engine.tasks.claims import ClaimRefusal
from soong.shared.engine.tasks.failure_report import tools_of
from soong.shared.engine.tasks.functions import suggestion
from soong.shared.engine.tasks.plan.plan import bind_step
from soong.shared.engine.tasks.service import Ledger
from soong.shared.engine.tasks.spec import StepStatus
from soong.shared.engine.tasks.step import Claim, Lease, Step, StepEnd
from soong.shared.engine.tasks.store import TaskStore
from soong.shared.tools.definition import HandlerOutput, ToolContext, ToolDefinition
from soong.shared.tools.result import ErrorType, ToolError
from soong.shared.tools.schema import repaired, validate
from soong.shared.tools.surface import Surface
from soong.shared.toolsets.tasks.showing import (
    MAX_SHOWN_STEPS,
    STEP_ID,
    TASK_ID,
    changes_state,
    result_facts,
    step_facts,
    step_line,
    task_facts,
    task_named,
    task_tool,
)

MAX_PROGRESS_CHARS: Final = 500
MAX_FAILURE_CHARS: Final = 2000

_REPORTS: Final = ("progress", "output", "failure")


class AdditionalClaims(Protocol):
    """The claims of additional steps by runs of this process, one at most for each run. They live as long as their
    holder is held here: a run that continues elsewhere, or again, holds none.
    """

    def held_by(self, holder: Lease) -> Claim | None:
        """Return the additional step of the run."""

    def why_lost(self, holder: Lease, step_id: str) -> str:
        """Return why the run does not hold a step any more that it had here; empty when nothing is known."""

    async def claim(self, holder: Lease, step_id: str) -> Claim | ClaimRefusal:
        """Claim a step of the holder's task. Raises: LeaseLostError; UnavailableError."""

    async def end(self, holder: Lease, end: StepEnd) -> bool:
        """End the additional step of the run; False when it was not held any more."""


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
        return (*self._reading(), *self._changing())

    def _reading(self) -> tuple[ToolDefinition, ...]:
        return (
            task_tool(
                "agent.task_get",
                "Get task",
                "Show the task you work on: its title, status, the states of its steps, and your own step. "
                "One who plans may name a task, and a step of it for its result.",
                "task status progress result",
                {"task_id": TASK_ID, "step_id": {**STEP_ID, "description": "A step, for its result."}},
                (),
                self._get,
                errors=(ErrorType.STEP_NOT_CLAIMED,),
            ),
            task_tool(
                "agent.task_query_steps",
                "Query steps",
                "List the steps of your task that are ready to be claimed, and what you hold. "
                "One who plans sees the steps of any status.",
                "steps ready open work",
                {
                    "task_id": TASK_ID,
                    "statuses": {
                        "type": "array",
                        "items": {"type": "string", "enum": [status.value for status in StepStatus]},
                        "description": "Only these, for one who plans; a child sees what is ready.",
                    },
                },
                (),
                self._query,
                errors=(ErrorType.STEP_NOT_CLAIMED,),
            ),
        )

    def _changing(self) -> tuple[ToolDefinition, ...]:
        step_id = {**STEP_ID, "description": "Id of the step. Left out: the one that you have claimed, else your own."}
        return (
            task_tool(
                "agent.task_claim_step",
                "Claim step",
                "Claim one more ready step of your task and get its instructions. You may hold one besides your own; "
                "end it with agent.task_update_step before you claim another. Your own step is yours already: "
                "claiming it again is harmless.",
                "claim take step",
                {"step_id": STEP_ID},
                ("step_id",),
                self._claim,
                errors=(ErrorType.STEP_NOT_CLAIMED, ErrorType.STEP_NOT_CLAIMABLE),
                traits=changes_state,
            ),
            task_tool(
                "agent.task_update_step",
                "Update step",
                "Report on a step that you hold. `progress`: how far you are, in one line. `output`: the result of the "
                "step that you have claimed, which completes it. `failure`: why it cannot be done, which fails it. Of "
                "your own step, a failure ends your run, and its result is your final answer.",
                "progress update step result done failed",
                {
                    "step_id": step_id,
                    "progress": {"type": "string", "minLength": 1, "maxLength": MAX_PROGRESS_CHARS},
                    "output": {"description": "The result, as the step's output_schema has it; any JSON without one."},
                    "failure": {"type": "string", "minLength": 1, "maxLength": MAX_FAILURE_CHARS},
                },
                (),
                self._update,
                errors=(ErrorType.STEP_NOT_CLAIMED, ErrorType.LEASE_LOST, ErrorType.INVALID_OUTPUT),
                validate_input=_one_report,
                traits=changes_state,
            ),
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
        of_agents = (step for step in steps if step.kind.traits.is_agent and not step.is_pull_worker)
        ready = [step for step in of_agents if step.status is StepStatus.READY]
        shown: list[Json] = [step_line(step) for step in ready[:MAX_SHOWN_STEPS]]
        held: dict[str, Json] = {"yours": step_line(own)}
        if claimed is not None:
            held["claimed"] = step_id_of(claimed)
        return {**held, "ready": shown, "truncated": len(ready) > MAX_SHOWN_STEPS}

    async def _get_any(self, context: ToolContext, call_input: JsonObject) -> HandlerOutput:
        task = await task_named(self.store.tasks, context, call_input)
        asked = str(call_input.get("step_id", ""))
        steps = await self.store.tasks.steps(task.id)
        ids = {step.key: step.step_id for step in steps}
        if asked:
            step = _found(asked, steps)
            facts = {**step_facts(step, ids), **result_facts(await self.store.tasks.result(step.key))}
            if not step.kind.traits.is_agent:
                return facts
            surface = (await self.store.runs.run(step.run_id)).surface
            return {**facts, "tools": tools_of(step, Surface.from_json(surface).tools if surface else ())}
        shown: list[Json] = [step_facts(step, ids) for step in steps[:MAX_SHOWN_STEPS]]
        facts = task_facts(task, await self.store.tasks.counts(task.id))
        return {**facts, "each": shown, "truncated": len(steps) > MAX_SHOWN_STEPS}

    async def _query_any(self, context: ToolContext, call_input: JsonObject) -> HandlerOutput:
        task = await task_named(self.store.tasks, context, call_input)
        wanted = call_input.get("statuses") or [StepStatus.READY.value]
        steps = await self.store.tasks.steps(task.id)
        ids = {step.key: step.step_id for step in steps}
        found = [step for step in steps if isinstance(wanted, list) and step.status.value in wanted]
        shown: list[Json] = [step_facts(step, ids) for step in found[:MAX_SHOWN_STEPS]]
        return {"task": task.id, "steps": shown, "truncated": len(found) > MAX_SHOWN_STEPS}

    async def _claim(self, context: ToolContext, call_input: JsonObject) -> HandlerOutput:
        own = await own_step(self.store.tasks, context, call_input)
        asked = str(call_input["step_id"])
        if asked == own.step_id:
            return {"claimed": step_line(own)}
        standing = self._claimed(context)
        if standing is not None and step_id_of(standing) == asked:
            return {"claimed": work_of(standing)}
        if self.claims is None:
            raise ToolError(ErrorType.STEP_NOT_CLAIMABLE, "no other step is given out here", hint="finish your own")
        answer = await self.claims.claim(_lease(context), asked)
        if isinstance(answer, ClaimRefusal):
            reason = {"reason": answer.reason.value}
            raise ToolError(ErrorType.STEP_NOT_CLAIMABLE, answer.problem, hint=answer.hint, details=reason)
        return {"claimed": work_of(answer)}

    async def _update(self, context: ToolContext, call_input: JsonObject) -> HandlerOutput:
        own = await own_step(self.store.tasks, context, call_input)
        standing = self._claimed(context)
        default = own.step_id if standing is None else step_id_of(standing)
        asked = str(call_input.get("step_id", default))
        if standing is not None and asked == step_id_of(standing):
            return await self._update_additional(context, standing, call_input)
        if asked != own.step_id:
            raise self._not_held(own, context, asked)
        if "failure" in call_input:
            return {"step": own.step_id, GIVEN_UP: self.shown(str(call_input["failure"]))}
        if "progress" not in call_input:
            problem = f"the result of your own step {own.step_id!r} is your final answer"
            raise ToolError(ErrorType.INVALID_INPUT, problem, hint="report progress or a failure, or answer when done")
        return await self._progress(_lease(context), own.step_id, call_input)

    async def _update_additional(self, context: ToolContext, claim: Claim, call_input: JsonObject) -> HandlerOutput:
        step_id = step_id_of(claim)
        if "progress" in call_input:
            return await self._progress(claim.lease, step_id, call_input)
        end = (
            claim.failed("failed", str(call_input["failure"]))
            if "failure" in call_input
            else _completed(claim, call_input.get("output"))
        )
        if self.claims is None or not await self.claims.end(_lease(context), end):
            now = await self.store.tasks.step(claim.step_key)
            late = f"step {step_id!r} is not yours any more, and your report of it does not count; it is {now.status}"
            raise ToolError(ErrorType.LEASE_LOST, late, hint="agent.task_query_steps lists the ready ones")
        return {"step": step_id, "status": end.status.value}

    async def _progress(self, held: Lease, step_id: str, call_input: JsonObject) -> HandlerOutput:
        progress = self.shown(" ".join(str(call_input["progress"]).split()))
        await self.store.claims.report_progress(self.worker_id(), held, progress, now_us=self.clock.now_us())
        return {"step": step_id, "progress": progress}

    def _claimed(self, context: ToolContext) -> Claim | None:
        return None if self.claims is None else self.claims.held_by(_lease(context))

    def _not_held(self, own: Step, context: ToolContext, asked: str) -> ToolError:
        """Return the refusal of a step that is not the run's: why it is not, and what it may do instead."""
        why = "" if self.claims is None else self.claims.why_lost(_lease(context), asked)
        standing = self._claimed(context)
        held = repr(own.step_id) if standing is None else f"{own.step_id!r} and {step_id_of(standing)!r}"
        problem = f"step {asked[:80]!r} is not yours: {why or f'you hold {held}'}"
        hint = "leave step_id out to update what you hold"
        if not why and standing is None:
            hint += "; what you held before your run was interrupted has been given back: claim it again if it is ready"
        return ToolError(ErrorType.LEASE_LOST if why else ErrorType.STEP_NOT_CLAIMED, problem, hint=hint)


async def own_step(store: TaskStore, context: ToolContext, call_input: JsonObject) -> Step:
    """Return the step that the run was started for. Raises: ToolError: it has none, or names a task that is not its."""
    if not context.identity.step_key:
        raise ToolError(ErrorType.STEP_NOT_CLAIMED, "this run has no step", hint="only a worker's run has one")
    own = await store.step(context.identity.step_key)
    asked = str(call_input.get("task_id", own.task_id))
    if asked != own.task_id:
        problem = f"task {asked[:80]!r} is not yours: your step is of {own.task_id}"
        raise ToolError(ErrorType.STEP_NOT_CLAIMED, problem, hint="leave task_id out")
    return own


def _lease(context: ToolContext) -> Lease:
    identity = context.identity
    return Lease(identity.step_key, identity.run_id, context.fence)


def _one_report(call_input: JsonObject) -> str | None:
    given = [name for name in _REPORTS if name in call_input]
    if len(given) == 1:
        return None
    return f"give one of {', '.join(_REPORTS)}" + (f", not {' and '.join(given)}" if given else "")


def _completed(claim: Claim, output: Json) -> StepEnd:
    """Return the end of a step with its result. Raises: ToolError: it breaks the step's schema."""
    output = output if claim.spec.output is None else repaired(claim.spec.output, output)
    violations = [] if claim.spec.output is None else validate(claim.spec.output, output)
    if violations:
        problem = f"the output of step {step_id_of(claim)!r} breaks its schema: " + "; ".join(map(str, violations))
        raise ToolError(ErrorType.INVALID_OUTPUT, problem, hint="fix it and report again; you still hold the step")
    return claim.completed(output)


def step_id_of(claim: Claim) -> str:
    return claim.step_key.removeprefix(f"{claim.identity.task_id}/")


def work_of(claim: Claim) -> dict[str, Json]:
    """Return the facts of a claimed step for its agent: instructions, inputs, and the form of the answer.
    Raises: TemplateError when a dependency's result lacks a value that the plan references.
    """
    bound = bind_step(claim.spec, claim.task_inputs, claim.dependencies)
    facts: dict[str, Json] = {
        "id": step_id_of(claim),
        "title": claim.identity.step_title,
        "instructions": bound.instructions,
        "inputs": bound.inputs,
        "attempt": claim.attempt,
    }
    if claim.spec.output is not None:
        facts["output_schema"] = claim.spec.output
    return facts


def _found(step_id: str, steps: Sequence[Step]) -> Step:
    step = next((step for step in steps if step.step_id == step_id), None)
    if step is None:
        known = frozenset(step.step_id for step in steps)
        raise ToolError(
            ErrorType.INVALID_INPUT, f"the task has no step {step_id[:80]!r}", hint=suggestion(step_id, known)
        )
    return step
