"""The expander: turns an unlocked map step into its children (DESIGN: dynamic fan-out).

The shape of growth is in the plan, so no edge is missing when a worker unlocks; only the number of children is
decided here, from the results the map step waited for.
"""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from soong.shared.core.clock import Clock
from soong.shared.core.errors import LimitExceededError, SoongError, TemplateError, UnavailableError
from soong.shared.core.log import get_logger
from soong.shared.engine.runs.store import RunStore
from soong.shared.engine.sessions.session import Ownership
from soong.shared.engine.tasks.expansion import expand_map
from soong.shared.engine.tasks.planner import check_total
from soong.shared.engine.tasks.status import StepStatus
from soong.shared.engine.tasks.step import MALFORMED, NewStep, Step, StepError, StepResult
from soong.shared.engine.tasks.store import TaskStore

log = get_logger(__name__)

MAX_STARTS: Final = 2
"""An expansion that has ended two owners, or failed unforeseen in them, is not begun again."""

Compute: TypeAlias = Callable[[Callable[[], list[NewStep]]], Awaitable[list[NewStep]]]


async def at_once(make: Callable[[], list[NewStep]]) -> list[NewStep]:
    """Compute on the event loop, where everything else waits for it."""
    return make()


@dataclass(slots=True)
class Expander:
    """One transaction for each map step, guarded by owner epoch and status: repeating it changes nothing.

    What a map step is over can be more than its owner has memory for, and so can an item. The start of an expansion is
    therefore counted durably, as leases are: a step is not adopted, begun and the death of its owner for ever.
    """

    tasks: TaskStore
    runs: RunStore
    clock: Clock
    max_children: int = 0
    """Most children of the task's root run, 0 for any number."""
    compute: Compute = at_once
    """Makes the children. They may take seconds, in which the owner beats and answers on."""
    max_starts: int = MAX_STARTS
    _begun: set[str] = field(default_factory=set)
    """Map steps that this owner has begun and could not end, because the database was away: begun once, not twice."""
    _doubts: Counter[str] = field(default_factory=Counter)
    """By map step: beginnings whose commit nobody confirmed to this owner. They may be counted, and ended nobody."""

    async def expand_all(self, ownership: Ownership) -> int:
        """Expand every map step of the session that is due; return how many."""
        steps = await self.tasks.steps_in(ownership, StepStatus.EXPANDING)
        for step in steps:
            if await self._is_safe(ownership, step):
                await self._expand(ownership, step)
                self._begun.discard(step.key)
                del self._doubts[step.key]
        return len(steps)

    async def _is_safe(self, ownership: Ownership, step: Step) -> bool:
        """Count the start of an expansion before it; fail a step of which the earlier ones have not come to an end."""
        if step.key in self._begun:
            return True
        try:
            starts = await self.tasks.begin_expansion(ownership, step.key)
        except UnavailableError:
            self._doubts[step.key] += 1
            raise
        if starts > self.max_starts + self._doubts[step.key]:
            words = (
                f"its expansion was begun {self.max_starts} times and ended its orchestrator each time, or failed "
                "there for an unknown reason; use fewer or smaller items"
            )
            await self._fail(ownership, step, StepError("poisoned", words))
            return False
        return starts > 0

    async def _expand(self, ownership: Ownership, step: Step) -> None:
        try:
            await self._expand_begun(ownership, step)
        except UnavailableError:
            self._begun.add(step.key)
            raise
        except asyncio.CancelledError:
            # This owner is told to stop, which is not the step's doing. An error here would take the place of that.
            with suppress(SoongError):
                await self.tasks.begin_expansion(ownership, step.key, is_taken_back=True)
            raise

    async def _expand_begun(self, ownership: Ownership, step: Step) -> None:
        task = await self.tasks.task(step.task_id)
        root = await self.runs.run(task.root_run_id)
        dependencies = await self._dependencies(step)
        malformed = next((result.malformed for result in dependencies.values() if result.malformed), "")
        if malformed:
            await self._fail(ownership, step, StepError(MALFORMED, malformed))
            return
        try:
            children = await self.compute(lambda: expand_map(step, task, dependencies, root.identity))
            await self._check_total(step, len(children))
        except TemplateError as error:
            await self._fail(ownership, step, StepError(error.code, str(error)))
            return
        except LimitExceededError as error:
            await self._fail(ownership, step, StepError("limit_exceeded", str(error)))
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
