"""The client of a service: writes a session and its first task.

It owns nothing: a session that it writes has no owner until an orchestrator adopts it. Its channel is SQL for rows
and Redis for "read the rows".
"""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Self

from soong.shared.core.settings import Settings
from soong.shared.core.timing import Clock
from soong.shared.core.value import Value
from soong.shared.engine.runs.budgets import NO_BUDGET, Budget, session_scope
from soong.shared.engine.sessions.session import Session
from soong.shared.engine.tasks.new_tasks import check_total
from soong.shared.engine.tasks.planner import Planner
from soong.shared.engine.tasks.service import TaskService
from soong.shared.engine.tasks.step import NewTask, session_limit
from soong.shared.engine.wire.notifier import Notifier, Subscriber
from soong.shared.storage.store import Store, retry_until_confirmed


class Submission(Value):
    """A session and its first task, ready to be written."""

    session: Session
    task: NewTask
    budget: Budget = NO_BUDGET
    """The session's budget; without a limit it keeps its own."""
    max_concurrent: int = 0
    """Most steps of the session at once; 0: the limit of the settings, if there is one."""


@dataclass(slots=True)
class Client:
    """One connection to a deployment. Its creator closes it."""

    store: Store
    notifier: Notifier
    subscriber: Subscriber
    clock: Clock
    settings: Settings
    planner: Planner = field(default_factory=Planner)
    closers: Sequence[Callable[[], Awaitable[None]]] = ()

    @property
    def tasks(self) -> TaskService:
        """The service of tasks for the client's own principal."""
        return self.tasks_of(self.settings.principal, may_approve=True)

    def tasks_of(self, principal: str, *, may_approve: bool) -> TaskService:
        """Return the service of tasks for a principal."""
        return TaskService(
            self.store, self.notifier, self.subscriber, self.clock, self.planner, principal, may_approve=may_approve
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_error: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Let go of everything. Idempotent."""
        closers, self.closers = self.closers, ()
        for close in closers:
            await close()

    async def submit(self, submission: Submission) -> None:
        """Write a session without an owner and its task, and ask owners to adopt it.

        The same submission written again does no harm.

        Raises:
            LimitExceededError: the task has more steps than a run may have children.
            UnavailableError: the database does not answer; it may have been written all the same.
        """
        check_total(0, len(submission.task.steps), self.settings.max_children_per_run)
        what = f"submission of {submission.task.id}"
        await retry_until_confirmed(lambda: self._write(submission), what=what)
        await self.notifier.notify_owners([submission.session.id])

    async def _write(self, submission: Submission) -> None:
        session, task, budget = submission.session, submission.task, submission.budget
        limit = submission.max_concurrent or self.settings.max_concurrent_children_per_session
        # Before the task: an owner may adopt it at once.
        if limit:
            await self.store.claims.set_concurrency_limits([session_limit(session.id, limit)])
        if budget != NO_BUDGET:
            await self.store.budgets.set_budget(session_scope(session.id), budget)
        await self.store.tasks.submit(session, task)
