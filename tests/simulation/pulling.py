"""What a pull worker does in a simulation: it takes ready steps one by one, works by its script, and reports.

Now and then it ends without a report, so that the end of its run is the end of what it holds, too.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Protocol

from soong.shared.core.jsontext import JsonObject
from soong.shared.engine.runs.status import EndReason
from soong.shared.engine.tasks.plan.inputs import bind_step
from soong.shared.engine.tasks.spec import ClaimMode
from soong.shared.engine.tasks.status import StepStatus
from soong.shared.engine.tasks.step import Claim, Lease, Step, StepEnd
from soong.shared.storage.store import Store
from soong.worker.additional_steps import AdditionalSteps


class Holder(Protocol):
    """The worker process, with what its runs hold beside their own steps."""

    @property
    def additional(self) -> AdditionalSteps: ...


@dataclass(frozen=True, slots=True)
class Pulling:
    """``work`` is what becomes of a claimed step by its script, the same as if its own run had it."""

    store: Store
    host: Holder
    work: Callable[[Claim, JsonObject], Awaitable[StepEnd]]

    async def run(self, own: Claim) -> StepEnd:
        holder = Lease(own.step_key, own.identity.run_id, own.fence)
        while (claim := await self._claim(own, holder)) is not None:
            script = bind_step(claim.spec, claim.task_inputs, claim.dependencies).inputs
            if script["is_greedy"]:
                await self._claim(own, holder)  # which is refused: one at a time
            end = await self.work(claim, script)
            if script["is_unreported"] and end.status is StepStatus.COMPLETED:
                return _answer(own, end)
            await self.host.additional.end(holder, end)
        return _answer(own)

    async def _claim(self, own: Claim, holder: Lease) -> Claim | None:
        """Take the first step that is given; None when none is."""
        for step in await self.store.tasks.steps(own.identity.task_id):
            if _is_open(step):
                claim = await self.host.additional.claim(holder, step.step_id)
                if isinstance(claim, Claim):
                    return claim
        return None


def _is_open(step: Step) -> bool:
    return step.status is StepStatus.READY and step.claim_mode is ClaimMode.PULL


def _answer(own: Claim, last: StepEnd | None = None) -> StepEnd:
    """Return the pull worker's own end: with the result of the step that it did not report, if there is one."""
    return StepEnd(
        own.step_key,
        own.identity.run_id,
        own.fence,
        StepStatus.COMPLETED,
        EndReason.COMPLETED,
        output=None if last is None else last.output,
    )
