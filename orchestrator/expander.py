"""The expander: turns an unlocked map step into its children (DESIGN: dynamic fan-out).

The shape of growth stands in the plan, so no edge is missing when a worker unlocks; only the number of children is
decided here, from the results the map step waited for.
"""

from dataclasses import dataclass

from shared.clock import Clock
from shared.errors import TemplateError
from shared.log import get_logger
from shared.runs.store import RunStore
from shared.sessions.session import Ownership
from shared.tasks.expansion import expand_map
from shared.tasks.status import StepStatus
from shared.tasks.step import Step, StepError, StepResult
from shared.tasks.store import TaskStore

log = get_logger(__name__)


@dataclass(slots=True)
class Expander:
    """One transaction a map step, guarded by owner epoch and status: repeating it changes nothing."""

    tasks: TaskStore
    runs: RunStore
    clock: Clock

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
        except TemplateError as error:
            log.warning("expansion_failed", step=step.key, error=str(error))
            failure = StepError("invalid_input", str(error))
            await self.tasks.fail_expansion(ownership, step.key, failure, now_us=self.clock.now_us())
            return
        await self.tasks.expand(ownership, step.key, children, now_us=self.clock.now_us())
        log.info("step_expanded", step=step.key, children=len(children))

    async def _dependencies(self, step: Step) -> dict[str, StepResult]:
        results = [await self.tasks.result(key) for key in step.depends_on]
        return {result.step_id: result for result in results}
