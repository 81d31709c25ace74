"""The expander: turns an unlocked map step into its children (DESIGN: dynamic fan-out).

The shape of growth stands in the plan, so no edge is missing when a worker unlocks; only the number of children is
decided here, from the results the map step waited for.
"""

from collections.abc import Callable
from dataclasses import dataclass

from shared.clock import Clock
from shared.errors import UsageError
from shared.jsontext import JsonObject
from shared.log import get_logger
from shared.runs.store import RunStore
from shared.sessions.session import Ownership
from shared.tasks.expansion import expand_map, map_items
from shared.tasks.plan import PlanStep
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
