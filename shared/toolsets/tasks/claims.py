"""The port of the step tools to the additional step of a run, and what such a step is to an agent (DAG-03)."""

from typing import Protocol

from soong.shared.core.jsontext import Json
from soong.shared.engine.tasks.additional_claims import ClaimRefusal
from soong.shared.engine.tasks.plan.inputs import bind_step
from soong.shared.engine.tasks.step import Claim, Lease, StepEnd


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
