"""How a child claims steps and reports them: its own, which its worker claimed for it, and one more at a time (DAG-03).

A child names steps only by their ids: fence, worker and run come from what it holds. Progress and failure may be
reported of any step it holds, a result only of an additional one, which ends with it. Its own step's result is its
final answer; a failure of its own step ends its run.
"""

from collections.abc import Callable
from typing import Final, Protocol

from soong.shared.agents.ports import GIVEN_UP
from soong.shared.core.clock import Clock
from soong.shared.core.jsontext import Json, JsonObject
from soong.shared.core.value import Value
from soong.shared.engine.tasks.claims import ClaimRefusal
from soong.shared.engine.tasks.plan.inputs import bind_step
from soong.shared.engine.tasks.service import Ledger
from soong.shared.engine.tasks.step import Claim, Lease, Step, StepEnd
from soong.shared.engine.tasks.store import TaskStore
from soong.shared.tools.definition import HandlerOutput, Permission, ToolContext, ToolDefinition
from soong.shared.tools.result import ErrorType, ToolError
from soong.shared.tools.schema import repaired, validate
from soong.shared.toolsets.tasks.showing import STEP_ID, TAGS, changes_state, step_line

MAX_PROGRESS_CHARS: Final = 500
MAX_FAILURE_CHARS: Final = 2000

_REPORTS: Final = ("progress", "output", "failure")


class AdditionalClaims(Protocol):
    """The claims of additional steps by runs of this process, one at most for each run.

    They live as long as their holder is held here: a run that continues elsewhere, or again, holds none.
    """

    def held_by(self, holder: Lease) -> Claim | None:
        """Return the additional step of the run."""
        ...

    def why_lost(self, holder: Lease, step_id: str) -> str:
        """Return why the run does not hold a step any more that it had here; empty when nothing is known."""
        ...

    async def claim(self, holder: Lease, step_id: str) -> Claim | ClaimRefusal:
        """Claim a step of the holder's task. Raises: LeaseLostError; UnavailableError."""
        ...

    async def end(self, holder: Lease, end: StepEnd) -> bool:
        """End the additional step of the run; False when it was not held any more."""
        ...


class ClaimTools(Value):
    """The two tools that change what a child holds. ``worker_id`` names the lease's holder.

    ``shown`` takes secrets out of what is stored for people (EVT-05). Without ``claims`` no additional step is given.
    """

    store: Ledger
    worker_id: Callable[[], str]
    clock: Clock
    shown: Callable[[str], str]
    claims: AdditionalClaims | None = None

    def tools(self) -> tuple[ToolDefinition, ...]:
        return (self._claim_tool(), self._update_tool())

    def _claim_tool(self) -> ToolDefinition:
        return ToolDefinition(
            name="agent.task_claim_step",
            title="Claim step",
            description="Claim one more ready step of your task and get its instructions. You may hold one besides "
            "your own; end it with agent.task_update_step before you claim another. Your own step is yours already: "
            "claiming it again is harmless.",
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
            description="Report on a step that you hold. `progress`: how far you are, in one line. `output`: the "
            "result of the step that you have claimed, which completes it. `failure`: why it cannot be done, which "
            "fails it. Of your own step, a failure ends your run, and its result is your final answer.",
            search_hint="progress update step result done failed",
            input_schema={
                "type": "object",
                "properties": {
                    "step_id": {
                        **STEP_ID,
                        "description": "Id of the step. Left out: the one that you have claimed, else your own.",
                    },
                    "progress": {"type": "string", "minLength": 1, "maxLength": MAX_PROGRESS_CHARS},
                    "output": {"description": "The result, as the step's output_schema has it; any JSON without one."},
                    "failure": {"type": "string", "minLength": 1, "maxLength": MAX_FAILURE_CHARS},
                },
            },
            handler=self._update,
            permission=Permission.READONLY,
            tags=TAGS,
            errors=(ErrorType.STEP_NOT_CLAIMED, ErrorType.LEASE_LOST, ErrorType.INVALID_OUTPUT),
            validate_input=_one_report,
            traits=changes_state,
        )

    async def _claim(self, context: ToolContext, call_input: JsonObject) -> HandlerOutput:
        own = await own_step(self.store.tasks, context, call_input)
        asked = str(call_input["step_id"])
        if asked == own.step_id:
            return {"claimed": step_line(own)}
        holder = _held(context, own)
        standing = self._open(holder)
        if standing is not None and step_id_of(standing) == asked:
            return {"claimed": work_of(standing)}
        if self.claims is None:
            raise ToolError(ErrorType.STEP_NOT_CLAIMABLE, "no other step is given out here", hint="finish your own")
        answer = await self.claims.claim(holder, asked)
        if isinstance(answer, ClaimRefusal):
            reason = {"reason": answer.reason.value}
            raise ToolError(ErrorType.STEP_NOT_CLAIMABLE, answer.problem, hint=answer.hint, details=reason)
        return {"claimed": work_of(answer)}

    async def _update(self, context: ToolContext, call_input: JsonObject) -> HandlerOutput:
        own = await own_step(self.store.tasks, context, call_input)
        holder = _held(context, own)
        standing = self._open(holder)
        default = own.step_id if standing is None else step_id_of(standing)
        asked = str(call_input.get("step_id", default))
        if standing is not None and asked == step_id_of(standing):
            return await self._update_additional(holder, standing, call_input)
        if asked != own.step_id:
            raise await self._not_held(own, holder, asked)
        if "failure" in call_input:
            return {"step": own.step_id, GIVEN_UP: self.shown(str(call_input["failure"]))}
        if "progress" not in call_input:
            problem = f"the result of your own step {own.step_id!r} is your final answer"
            raise ToolError(ErrorType.INVALID_INPUT, problem, hint="report progress or a failure, or answer when done")
        return await self._progress(holder, own.step_id, call_input)

    async def _update_additional(self, holder: Lease, claim: Claim, call_input: JsonObject) -> HandlerOutput:
        step_id = step_id_of(claim)
        if "progress" in call_input:
            held = claim.lease
            return await self._progress(held, step_id, call_input)
        end = (
            claim.failed("failed", str(call_input["failure"]))
            if "failure" in call_input
            else _completed(claim, call_input.get("output"))
        )
        if self.claims is None or not await self.claims.end(holder, end):
            raise await self._gone(claim, step_id)
        return {"step": step_id, "status": end.status.value}

    async def _progress(self, held: Lease, step_id: str, call_input: JsonObject) -> HandlerOutput:
        progress = self.shown(" ".join(str(call_input["progress"]).split()))
        await self.store.claims.report_progress(self.worker_id(), held, progress, now_us=self.clock.now_us())
        return {"step": step_id, "progress": progress}

    def _open(self, holder: Lease) -> Claim | None:
        return None if self.claims is None else self.claims.held_by(holder)

    async def _not_held(self, own: Step, holder: Lease, asked: str) -> ToolError:
        """Return the refusal of a step that is not the run's: why it is not, and what it may do instead."""
        why = "" if self.claims is None else self.claims.why_lost(holder, asked)
        standing = self._open(holder)
        held = repr(own.step_id) if standing is None else f"{own.step_id!r} and {step_id_of(standing)!r}"
        problem = f"step {asked[:80]!r} is not yours: {why or f'you hold {held}'}"
        hint = "leave step_id out to update what you hold"
        if not why and standing is None:
            hint += "; what you held before your run was interrupted has been given back: claim it again if it is ready"
        return ToolError(ErrorType.LEASE_LOST if why else ErrorType.STEP_NOT_CLAIMED, problem, hint=hint)

    async def _gone(self, claim: Claim, step_id: str) -> ToolError:
        """Return the refusal of a report that came too late; with the current state of the step."""
        now = await self.store.tasks.step(claim.step_key)
        problem = f"step {step_id!r} is not yours any more, and your report of it does not count; it is {now.status}"
        return ToolError(ErrorType.LEASE_LOST, problem, hint="agent.task_query_steps lists the ready ones")


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


def _held(context: ToolContext, own: Step) -> Lease:
    return Lease(own.key, context.identity.run_id, context.fence)


def _one_report(call_input: JsonObject) -> str | None:
    """Say what is wrong with a report's parts."""
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
    """Return the id of the claimed step in its task."""
    return claim.step_key.removeprefix(f"{claim.identity.task_id}/")


def work_of(claim: Claim) -> dict[str, Json]:
    """Return what an agent gets with a step that it has claimed: what to do, with what, and what to answer.

    Raises: TemplateError when a result that it waited for has not what the plan asks of it.
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
