"""Says of ready steps that no living worker is able to take them, and what is missing.

They wait all the same: a capable worker may start at any time. A client that shows the task reports it at once; after
``no_worker_s`` it is written down, in the log of the task's root run and in the owner's own.
"""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field

from soong.shared.core.clock import Clock
from soong.shared.core.errors import LeaseLostError, NotOwnerError
from soong.shared.core.log import get_logger
from soong.shared.engine.runs.events import EventType, NewEvent
from soong.shared.engine.runs.store import RunStore
from soong.shared.engine.sessions.session import Ownership
from soong.shared.engine.tasks.status import StepStatus
from soong.shared.engine.tasks.step import Step, WaitingSteps
from soong.shared.engine.tasks.store import TaskStore

log = get_logger(__name__)


@dataclass(slots=True)
class UnschedulableSteps:
    """Remembers since when each kind of step has waited without success; each is reported once."""

    tasks: TaskStore
    runs: RunStore
    clock: Clock
    patience_s: float
    _since: dict[WaitingSteps, float] = field(default_factory=dict)
    _told: set[WaitingSteps] = field(default_factory=set)

    async def tell(self, unclaimable: Mapping[WaitingSteps, str], owned: Mapping[str, Ownership]) -> None:
        """Write down what of our sessions has waited for too long. Raises: UnavailableError."""
        now = self.clock.monotonic_s()
        self._since = {one: self._since.get(one, now) for one in unclaimable}
        self._told &= unclaimable.keys()
        for one, since in self._since.items():
            if one in self._told or now - since < self.patience_s or one.session_id not in owned:
                continue
            with suppress(NotOwnerError):  # the session is another's by now, who will tell it
                await self._tell(one, unclaimable[one], owned[one.session_id])
            self._told.add(one)

    async def _tell(self, one: WaitingSteps, words: str, ownership: Ownership) -> None:
        by_task: dict[str, list[Step]] = {}
        for step in await self.tasks.steps_in(ownership, StepStatus.READY):
            if (step.pool, step.needs) == (one.pool, one.needs):
                by_task.setdefault(step.task_id, []).append(step)
        for task_id, steps in by_task.items():
            names = [step.step_id for step in steps]
            log.warning("no_capable_worker", task=task_id, steps=names[:10], number=len(names), reason=words)
            await self._note(task_id, names, one, words)

    async def _note(self, task_id: str, names: list[str], one: WaitingSteps, words: str) -> None:
        root_run_id = (await self.tasks.task(task_id)).root_run_id
        now_us = self.clock.now_us()
        data = {"steps": list(names), "pool": one.pool, "needs": list(one.needs), "reason": words}
        event = NewEvent(EventType.STEP_UNCLAIMABLE, data, now_us)
        try:
            # Of an ask the root run is held, by this owner, under a fence.
            fence = (await self.runs.run(root_run_id)).fence
            await self.runs.append(root_run_id, fence, events=(event,), now_us=now_us)
        except LeaseLostError:
            log.info("task_over", task=task_id)  # it was ended at this moment
