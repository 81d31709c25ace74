"""Tasks that have ended: with all that the result tells, as one read finds it, and as an owner's look ends them."""

from collections.abc import Sequence
from typing import TypeAlias

from soong.shared.core.value import Value
from soong.shared.engine.runs.store import LastRuns
from soong.shared.engine.tasks.status import TaskStatus
from soong.shared.engine.tasks.step import SessionWork, Step, Task


class TaskEnd(Value):
    """The task, its steps in the order in which they were inserted, and what their last runs tell."""

    task: Task
    steps: Sequence[Step]
    last_runs: LastRuns


class FinishedTask(Value):
    """A task that a look has ended.

    ``is_closed``: its session was closed with it. ``is_recorded``: its runs have no folders to be written.
    """

    task_id: str
    status: TaskStatus
    is_closed: bool = False
    is_recorded: bool = False


SessionLook: TypeAlias = tuple[SessionWork, Sequence[FinishedTask]]
"""What there is to do in a session, and the tasks that the look at it has ended."""
