"""The outbox of notifications in memory."""

from collections.abc import Sequence

from msgspec.structs import replace

from soong.shared.engine.sessions.session import ProcessState
from soong.shared.engine.tasks.event_feed import (
    FeedCursor,
    FeedPart,
    FeedRun,
    MessageOutcome,
    Notice,
    NoticeState,
    Totals,
)
from tests.model.memory.rows import Part, transaction

GIVEN_UP = (NoticeState.DEAD, NoticeState.GONE)


class MemoryNotificationOutbox(Part):
    """The part that :class:`NotificationOutbox` describes."""

    @transaction
    def add(self, notices: Sequence[Notice]) -> None:
        for notice in notices:
            self.rows.notices.setdefault(notice.id, notice)

    @transaction
    def waiting(self, channel: str, *, events: Sequence[str], limit: int) -> Sequence[Notice]:
        ours = [one for one in self.rows.notices.values() if one.channel == channel and one.event in events]
        waiting = [notice for notice in ours if notice.state is NoticeState.WAITING]
        return sorted(waiting, key=lambda notice: (notice.due_us, notice.id))[:limit]

    @transaction
    def is_acting(self, consumer: str, owner_id: str) -> bool:
        return self._acts(consumer, owner_id)

    @transaction
    def group(self, consumer: str, owner_id: str, message_id: str, ids: Sequence[str]) -> bool:
        notices = [self.rows.notices.get(id_) for id_ in ids]
        if not self._acts(consumer, owner_id) or not all(
            notice is not None and notice.state is NoticeState.WAITING and not notice.message_id for notice in notices
        ):
            return False
        self._change(ids, message_id=message_id)
        return True

    @transaction
    def record_outcome(
        self, consumer: str, owner_id: str, ids: Sequence[str], outcome: MessageOutcome, *, now_us: int, totals: Totals
    ) -> bool:
        if not self._acts(consumer, owner_id):
            return False
        waiting = [id_ for id_ in ids if self.rows.notices[id_].state is NoticeState.WAITING]
        ended_us = 0 if outcome.state is NoticeState.WAITING else now_us
        self._change(
            waiting,
            state=outcome.state,
            attempts=outcome.attempts,
            due_us=outcome.due_us,
            error=outcome.error,
            ended_us=ended_us,
        )
        if outcome.state is NoticeState.SENT:
            channels = {self.rows.notices[id_].channel for id_ in ids}
            others = [
                notice.id
                for notice in self.rows.notices.values()
                if notice.channel in channels
                and notice.state is NoticeState.WAITING
                and notice.attempts
                and notice.due_us > now_us
            ]
            self._change(others, due_us=now_us)
        for key, total in totals.items():
            self.rows.totals[key] = self.rows.totals.get(key, 0) + total
        return True

    @transaction
    def sent_since(self, channel: str, since_us: int) -> int:
        sent = [notice for notice in self.rows.notices.values() if notice.state is NoticeState.SENT]
        return len({one.message_id for one in sent if one.channel == channel and one.ended_us >= since_us})

    @transaction
    def gone_channels(self) -> Sequence[str]:
        return sorted({one.channel for one in self.rows.notices.values() if one.state is NoticeState.GONE})

    @transaction
    def waiting_channels(self) -> Sequence[str]:
        return sorted({one.channel for one in self.rows.notices.values() if one.state is NoticeState.WAITING})

    @transaction
    def notices(self, *, include_ended: bool, limit: int) -> Sequence[Notice]:
        shown = (NoticeState.WAITING, *GIVEN_UP)
        found = [one for one in self.rows.notices.values() if include_ended or one.state in shown]
        return found[-limit:]

    @transaction
    def retry(self, *, message_id: str = "", channel: str = "", now_us: int) -> int:
        found = [
            one.id
            for one in self.rows.notices.values()
            if one.state in GIVEN_UP and message_id in ("", one.message_id) and channel in ("", one.channel)
        ]
        self._change(found, state=NoticeState.WAITING, attempts=0, due_us=now_us, ended_us=0)
        return len(found)

    @transaction
    def prune(self, before_us: int) -> int:
        kept = (NoticeState.WAITING, NoticeState.GONE)
        old = [one.id for one in self.rows.notices.values() if one.state not in kept and one.ended_us < before_us]
        for id_ in old:
            del self.rows.notices[id_]
        return len(old)

    def _acts(self, consumer: str, owner_id: str) -> bool:
        return self.rows.consumers.get(consumer, ("", 0))[0] == owner_id

    def _change(self, ids: Sequence[str], **fields: object) -> None:
        for id_ in ids:
            self.rows.notices[id_] = replace(self.rows.notices[id_], **fields)


class MemoryEventFeed(Part):
    """Consumers and their places. The part that :class:`EventFeed` describes."""

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
