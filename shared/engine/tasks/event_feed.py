"""The port by which a consumer follows the logs of all runs: each event once, whatever dies in between.

A **consumer** is a name, such as the exporter of traces. Its place in every log is a row, so a consumer that starts
again continues where it was. One orchestrator at a time acts for a consumer: a successor takes its place when the
former one is marked as gone.
"""

from collections.abc import Mapping, Sequence
from typing import Protocol

import msgspec

from soong.shared.core.identity import RunIdentity
from soong.shared.core.jsontext import JsonObject
from soong.shared.core.value import Value
from soong.shared.engine.runs.events import Event
from soong.shared.engine.tasks.kinds import TaskKind


class FeedRun(Value):
    """A run whose log has grown beyond the consumer's place in it.

    ``seq`` is that place and ``state`` what the consumer wrote down there; 0 and empty at first.
    """

    identity: RunIdentity
    attempt: int
    retry_of: str
    created_us: int
    task_title: str
    task_kind: TaskKind
    is_root: bool
    planner_run_id: str = ""
    """The run of another task whose agent planned this one; empty: a person did."""
    trace_parent: str = ""
    """The trace that its task belongs to, as its submitter said (W3C trace context); empty: its own."""
    seq: int = 0
    state: JsonObject = msgspec.field(default_factory=dict)


class FeedPart(Value):
    """The next events of one run, in order."""

    run: FeedRun
    events: Sequence[Event]


class FeedCursor(Value):
    """How far a consumer has come in the log of a run, and what it needs to continue from there."""

    run_id: str
    seq: int
    state: JsonObject = msgspec.field(default_factory=dict)


Totals = Mapping[tuple[str, tuple[str, ...]], int]
"""What to add to running totals, by name and labels."""


class EventFeed(Protocol):
    async def take_over(self, consumer: str, owner_id: str, *, now_us: int) -> int | None:
        """Act for a consumer from now on; return since when the ends of tasks are to be looked at.

        None: a living owner acts for it. A consumer that is new begins at ``now_us``, with the tasks that are open.
        """
        ...

    async def read(self, consumer: str, *, since_us: int, limit: int) -> Sequence[FeedPart]:
        """Return what is new, at most about ``limit`` events: of open tasks, and of those that ended since then."""
        ...

    async def advance(
        self,
        consumer: str,
        owner_id: str,
        cursors: Sequence[FeedCursor],
        *,
        since_us: int,
        totals: Totals | None = None,
    ) -> bool:
        """Write down how far it came and add to the totals, all or nothing; False: another owner acts for it now."""
        ...

    async def totals(self) -> Totals:
        """Return the running totals of the deployment."""
        ...
