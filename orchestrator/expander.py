"""The expander: turns an unlocked map step into its children (DESIGN: dynamic fan-out).

The shape of growth stands in the plan, so no edge is missing when a worker unlocks; only the number of children is
decided here, from the results the map step waited for.
"""

from dataclasses import dataclass

from shared.clock import Clock
from shared.errors import LimitExceededError, TemplateError
from shared.log import get_logger
from shared.runs.store import RunStore
from shared.sessions.session import Ownership
from shared.tasks.expansion import expand_map
from shared.tasks.status import StepStatus
from shared.tasks.step import Step, StepError, StepResult
from shared.tasks.store import TaskStore
from shared.tasks.totals import check_total

log = get_logger(__name__)


@dataclass(slots=True)
class Expander:
    """One transaction a map step, guarded by owner epoch and status: repeating it changes nothing."""

    tasks: TaskStore
    runs: RunStore
    clock: Clock
    max_children: int = 0
    """Most children of the task's root run, 0 for any number."""

    async def expand_all(self, ownership: Ownership) -> int:
        """Expand every map step of the session that is due; return how many."""
        steps = await self.tasks.steps_in(ownership, StepStatus.EXPANDING)
        for step in steps:
            await self._expand(ownership, step)
        return len(steps)

    async def _expand(self, ownership: Ownership, step: Step) -> None:
        task = await self.tasks.task(step.task_id)
        root = await self.runs.run(task.root_run_id)
        try:
            children = expand_map(step, task, await self._dependencies(step), root.identity)
            await self._check_total(step, len(children))
        except TemplateError as error:
            await self._fail(ownership, step, StepError(error.code, str(error)))
            return
        except LimitExceededError as error:
            words = str(error).removeprefix(LimitExceededError.MARK)
            await self._fail(ownership, step, StepError("limit_exceeded", words))
            return
        await self.tasks.expand(ownership, step.key, children, now_us=self.clock.now_us())
        log.info("step_expanded", step=step.key, children=len(children))

    async def _check_total(self, step: Step, children: int) -> None:
        if self.max_children:
            counts = await self.tasks.counts(step.task_id)
            check_total(sum(counts.by_status.values()), children, self.max_children)

    async def _fail(self, ownership: Ownership, step: Step, error: StepError) -> None:
        log.warning("expansion_failed", step=step.key, error=error.message)
        await self.tasks.fail_expansion(ownership, step.key, error, now_us=self.clock.now_us())

    async def _dependencies(self, step: Step) -> dict[str, StepResult]:
        results = [await self.tasks.result(key) for key in step.depends_on]
        return {result.step_id: result for result in results}
