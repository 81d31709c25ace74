"""A task that has ended, with all that its result tells, as one read finds it."""

from collections.abc import Sequence

from soong.shared.core.lazy_dataclass import dataclass
from soong.shared.engine.runs.store import LastRuns
from soong.shared.engine.tasks.step import Step, Task


@dataclass(frozen=True, slots=True)
class TaskEnd:
    """The task, its steps in the order in which they were inserted, and what their last runs tell."""

    task: Task
    steps: Sequence[Step]
    last_runs: LastRuns
