"""The limits of a task, as its steps keep them (DIS-07): none starts once one is reached; time ends those under way.

Tokens, money and model turns are looked at before each model request (:mod:`soong.shared.agents.requests`).
"""

import asyncio
from collections.abc import Awaitable, Callable

from soong.shared.core.clock import Clock
from soong.shared.core.log import get_logger
from soong.shared.core.value import Value
from soong.shared.engine.runs.budgets import MICRO, TASK_LIMIT, BudgetStore, TaskTime, time_words
from soong.shared.engine.runs.status import EndReason
from soong.shared.engine.tasks.step import Claim, StepEnd

log = get_logger(__name__)


class TaskLimits(Value):
    """What a worker process does about them; it reads rows for steps of tasks with limits alone."""

    budgets: BudgetStore
    clock: Clock

    async def keep(self, claim: Claim, work: Callable[[], Awaitable[StepEnd]]) -> StepEnd:
        """Do the work of a step within the limits of its task.

        Raises: what ``work`` raises; UnavailableError, when the limits cannot be read.
        """
        time = await self.budgets.task_time(claim.identity.task_id)
        if time is None:
            return await work()
        left_s = self._left_s(time)
        if time.reached or (left_s is not None and left_s <= 0):
            log.info("step_not_started", step=claim.step_key, reason=time.reached or "wall_s")
            return claim.cancelled(time.reached or _words(time))
        try:
            async with asyncio.timeout(left_s) as limit:
                end = await work()
            if not limit.expired():  # else the work ignored its cancellation
                return end
        except TimeoutError:
            pass
        return claim.failed(TASK_LIMIT, _words(time), reason=EndReason.TIME_LIMIT)

    def _left_s(self, time: TaskTime) -> float | None:
        return None if time.deadline_us is None else (time.deadline_us - self.clock.now_us()) / MICRO


def _words(time: TaskTime) -> str:
    return time_words(time.wall_us or 0)
