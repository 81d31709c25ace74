"""Ended tasks that may be removed: the port of garbage collection (OPS-10).

A task leaves in steps, each a small transaction, so that a service works meanwhile. The first one removes the task's
row: from then on no reader finds the task. The remaining rows have no task any more, and are found by that, also after
a collection that was killed.
"""

from collections.abc import AsyncIterator, Sequence
from typing import Protocol

from soong.shared.core.value import Value


class EndedTask(Value):
    """A task that has ended. ``steps`` is the number of its steps."""

    id: str
    title: str
    ended_us: int
    steps: int


class RemovedRows(Value):
    """The rows that one transaction removed. ``run_ids`` are runs whose rows are gone."""

    steps: int = 0
    run_ids: Sequence[str] = ()

    @property
    def is_empty(self) -> bool:
        return not self.steps and not self.run_ids


class Footprint(Value):
    """The parts of a task. ``row_bytes``: roughly the size of its rows."""

    run_ids: Sequence[str] = ()
    row_bytes: int = 0


class NamedArtifact(Value):
    """An artifact that a row names. ``task_id`` is "" for a run without a task.

    ``kind`` is its media type, ``deliverable`` for a copy of a file that a run wrote, "" when that row has none.
    """

    digest: str
    task_id: str
    kind: str = ""


class StoredArtifact(Value):
    """An artifact that is stored. ``changed_s``: when it was last written, in seconds since the epoch."""

    digest: str
    size_bytes: int
    changed_s: float


class Retention(Protocol):
    """Removes rows of what has ended. Needs the rights of the tables' owner.

    Every method may raise UnavailableError, and InvalidConfigError when its database role may not remove rows.
    """

    async def ended_tasks(self, *, before_us: int, after: tuple[int, str] = (0, ""), limit: int) -> Sequence[EndedTask]:
        """Return tasks that may be removed, oldest end first, after the one of that (ended_us, id).

        A task may be removed when it ended before ``before_us``, its run folders are written, no step is held or
        waits for its owner, no question of its runs is open, no command about it is open, and the task whose agent
        planned it, if one did, has ended, as has the one above that.
        """

    async def remove_task(self, task_id: str, *, before_us: int) -> bool:
        """Remove a task's row if it still may be removed; say whether it is gone."""

    async def footprint(self, task_id: str) -> Footprint:
        """Return what a task consists of."""

    async def gone_tasks(self) -> Sequence[str]:
        """Return tasks that are gone and have rows left by a killed collection. Reads all runs."""

    async def remove_rest(self, task_id: str, *, limit: int) -> RemovedRows:
        """Remove at most ``limit`` steps or runs of a task that is gone; nothing removed: nothing is left.

        A task that was submitted again under the same id meanwhile loses nothing.
        """

    async def remove_sessions(self, *, before_us: int) -> int:
        """Remove closed sessions without tasks, with their limits; close open ones. Return how many are gone.

        Only sessions made before ``before_us``. An open session without tasks is closed first, so that its owner lets
        go of it, and is removed by a later collection.
        """

    async def remove_processes(self, *, before_us: int) -> int:
        """Remove rows of workers and orchestrators that are gone, and carried-out commands; return how many."""

    async def run_ids(self) -> frozenset[str]:
        """Return the ids of all runs."""

    def named_artifacts(self) -> AsyncIterator[NamedArtifact]:
        """Yield each artifact that any row names, some more than once."""

    async def used_bytes(self) -> int:
        """Return the bytes that the rows take, without space that removed rows left free."""

    async def close(self) -> None: ...
