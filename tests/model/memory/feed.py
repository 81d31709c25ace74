"""The event feed in memory."""

import threading
from collections.abc import Sequence

from soong.shared.engine.sessions.session import ProcessState
from soong.shared.engine.tasks.event_feed import FeedCursor, FeedPart, FeedRun, Totals
from tests.model.memory.rows import Rows, transaction


class MemoryEventFeed:
    """Consumers and their places. The part that :class:`EventFeed` describes."""

    def __init__(self, rows: Rows, lock: threading.RLock) -> None:
        self.rows = rows
        self.lock = lock

    @transaction
    def take_over(self, consumer: str, owner_id: str, *, now_us: int) -> int | None:
        holder, since_us = self.rows.consumers.get(consumer, (owner_id, now_us))
        living = self.rows.owners.get(holder)
        if holder != owner_id and living is not None and living.state is not ProcessState.GONE:
            return None
        self.rows.consumers[consumer] = (owner_id, since_us)
        return since_us

    @transaction
    def read(self, consumer: str, *, since_us: int, limit: int) -> Sequence[FeedPart]:
        parts: list[FeedPart] = []
        for run in self.rows.runs.values():
            task = self.rows.tasks.get(run.identity.task_id)
            if task is None or (
                task.status.is_terminal and task.id in self.rows.recorded and (task.ended_us or 0) < since_us
            ):
                continue
            cursor = self.rows.cursors.get((consumer, run.id), FeedCursor(run.id, 0))
            events = [event for event in self.rows.events.get(run.id, ()) if event.seq > cursor.seq][:limit]
            limit -= len(events)
            if events:
                followed = FeedRun(
                    identity=run.identity,
                    attempt=run.attempt,
                    retry_of=run.retry_of,
                    created_us=run.created_us,
                    task_title=task.title,
                    task_kind=task.kind,
                    is_root=run.id == task.root_run_id,
                    planner_run_id=self.rows.run(task.root_run_id).identity.parent_run_id,
                    trace_parent=task.trace_parent,
                    seq=cursor.seq,
                    state=cursor.state,
                )
                parts.append(FeedPart(followed, events))
        return parts

    @transaction
    def advance(
        self,
        consumer: str,
        owner_id: str,
        cursors: Sequence[FeedCursor],
        *,
        since_us: int,
        totals: Totals | None = None,
    ) -> bool:
        if self.rows.consumers.get(consumer, ("", 0))[0] != owner_id:
            return False
        self.rows.consumers[consumer] = (owner_id, since_us)
        self.rows.cursors.update({(consumer, cursor.run_id): cursor for cursor in cursors})
        for key, total in (totals or {}).items():
            self.rows.totals[key] = self.rows.totals.get(key, 0) + total
        return True

    @transaction
    def totals(self) -> Totals:
        return dict(sorted(self.rows.totals.items()))
