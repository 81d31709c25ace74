"""Conversations as a front end knows them: the asks of a session, after those of what it was forked from (ACP-02).

A fork has no row of its own. Its first ask says which run's conversation it continues, and that run belongs to another
session; so what came before is found as long as it is kept.
"""

from collections.abc import Sequence
from itertools import dropwhile
from typing import Final

from soong.orchestrator.client.client import Client
from soong.shared.core.errors import NotFoundError
from soong.shared.core.value import Value
from soong.shared.engine.runs.record import Run
from soong.shared.engine.runs.status import RunStatus
from soong.shared.engine.tasks.asks import follows
from soong.shared.engine.tasks.kinds import TaskKind
from soong.shared.engine.tasks.step import Task

MANY: Final = 1000
"""Asks of one session, and sessions that one was forked from."""


class SessionConversation(Value):
    """What a client knows of a session's conversation. ``origin`` is the run that a fork without an ask continues."""

    client: Client
    session_id: str
    origin: str = ""

    async def asks(self) -> Sequence[Task]:
        """Return all asks that it consists of, oldest first."""
        found: list[Task] = []
        seen: set[str] = set()
        session_id, own = self.session_id, await asks_of(self.client, self.session_id)
        while len(seen) < MANY:
            found[:0] = reversed(own)
            seen.add(session_id)
            former = await self._run(_origin_of(own) or (self.origin if session_id == self.session_id else ""))
            if former is None or former.identity.session_id in seen:
                break
            session_id = former.identity.session_id
            # What was asked there after the fork is no part of it.
            own = _until(former.identity.task_id, await asks_of(self.client, session_id))
        return found

    async def last_run(self) -> Run | None:
        """Return the run that another prompt, or a fork, continues: that of the last ask that completed. None: none."""
        own = await asks_of(self.client, self.session_id)
        for task in own:
            run = await self.client.store.runs.run(task.root_run_id)
            if run.status is RunStatus.COMPLETED:
                return run
        return await self._run(_origin_of(own) or self.origin)

    async def _run(self, run_id: str) -> Run | None:
        """Return a run that may be continued; None for one that is no longer kept, or belongs to someone else."""
        if not run_id:
            return None
        try:
            run = await self.client.store.runs.run(run_id)
            session = await self.client.store.sessions.session(run.identity.session_id)
        except NotFoundError:
            return None
        return run if session.principal == self.client.settings.principal else None


def _until(task_id: str, asks: Sequence[Task]) -> list[Task]:
    """Return the asks up to this one; they are given newest first."""
    return list(dropwhile(lambda task: task.id != task_id, asks))


def _origin_of(asks: Sequence[Task]) -> str:
    """Return the run that the first ask of a session, which are given newest first, continues."""
    return follows(asks[-1].inputs) if asks else ""


async def asks_of(client: Client, session_id: str) -> list[Task]:
    """Return the asks of a session, newest first."""
    tasks = await client.store.tasks.list_tasks(session_id=session_id, limit=MANY)
    return [task for task in tasks if task.kind is TaskKind.ASK]
