"""The client of a service: writes a session and a task, asks its owner for things, follows what happens.

It owns nothing: a session that it writes has no owner until an orchestrator adopts it, and what it wants of a task is a
command row. Its channel is SQL for what is and Redis for "look again".
"""

import asyncio
import functools
import time
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final, Self, TypeVar

import msgspec

from soong.shared.core import timing
from soong.shared.core.clock import Clock, utc_date
from soong.shared.core.errors import UnavailableError
from soong.shared.core.settings import Settings
from soong.shared.core.value import Value
from soong.shared.engine.runs.budgets import DAY, NO_BUDGET, Budget, BudgetState, session_scope
from soong.shared.engine.runs.store import LastRuns
from soong.shared.engine.sessions.session import CommandKind, ProcessState, Session, Worker
from soong.shared.engine.tasks.claims import lacking
from soong.shared.engine.tasks.planner import Planner, check_total, waiting_for_a_pull_worker
from soong.shared.engine.tasks.service import TaskService
from soong.shared.engine.tasks.spec import ClaimMode, TaskKind
from soong.shared.engine.tasks.status import StepStatus, TaskStatus
from soong.shared.engine.tasks.step import NewTask, Step, Task, session_limit
from soong.shared.engine.tasks.store import TaskEnd
from soong.shared.engine.wire.notifier import Notifier, Subscriber, Subscription
from soong.shared.permissions.request import PermissionCallback, PermissionRequest
from soong.shared.storage.store import Store, retry_until_confirmed

T = TypeVar("T")

LOOKS: Final = 3
"""Looks at a task after news of it. Those of its end are sent while that is being committed, which may take longer."""
PAUSE_PER_LOOK: Final = 5
"""After a look a client pauses so many times as long as it took: a task of thousands of steps is not all it reads."""
PAGE: Final = 1000
MANY_STEPS: Final = 1_000
"""A task with more is not read as one."""
BRIEF_STEPS: Final = 60
"""Steps of such a task that are shown, and failed ones in addition."""


class TaskSnapshot(Value):
    """The current state of a task, for people who watch it."""

    task: Task
    steps: tuple[Step, ...]
    workers: tuple[Worker, ...]
    questions: tuple[PermissionRequest, ...]
    lacks: Mapping[str, str] = msgspec.field(default_factory=dict)
    """By step key: why no worker may take what is ready."""
    planned: tuple[Task, ...] = ()
    """The tasks that the agent of an ask has made; their steps are among ``steps``."""
    budgets: tuple[BudgetState, ...] = ()
    """Of its session and of the day, where there is one."""
    last_runs: LastRuns | None = None
    """What the last runs of its steps tell, where that was read with them."""
    totals: Mapping[StepStatus, int] | None = None
    """The number of steps by status, where ``steps`` are only the first of them."""

    @property
    def counts(self) -> Mapping[StepStatus, int]:
        return self.totals or Counter(step.status for step in self.steps)

    @property
    def has_ended(self) -> bool:
        """Whether nothing more happens to the task by itself."""
        return self.task.status.is_terminal or (self.task.status is TaskStatus.PAUSED and not self.held)

    @property
    def to_be_pulled(self) -> int:
        """The number of steps that wait for a pull worker while nothing runs that could take them."""
        return 0 if self.task.status.is_terminal else waiting_for_a_pull_worker(self.steps)

    @property
    def held(self) -> int:
        """The number of steps that a worker holds."""
        return sum(step.status.is_leased for step in self.steps)


class Submission(Value):
    """A session and its first task, ready to be written."""

    session: Session
    task: NewTask
    budget: Budget = NO_BUDGET
    """Of the session; without a limit it keeps what it has."""
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
    _responders: list[asyncio.Task[None]] = field(default_factory=list)

    @property
    def tasks(self) -> TaskService:
        """What tasks are made and asked through, here as everywhere."""
        who = self.settings.principal
        return TaskService(self.store, self.notifier, self.subscriber, self.clock, self.planner, who, may_approve=True)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_error: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Let go of everything. Idempotent."""
        for task in self._responders:
            task.cancel()
        await asyncio.gather(*self._responders, return_exceptions=True)
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
        if not limit and budget.is_unlimited:
            await self.store.tasks.submit(session, task)
            return
        writes: list[Awaitable[object]] = [self.store.sessions.open_session(session)]
        if limit:
            writes.append(self.store.claims.set_concurrency_limits([session_limit(session.id, limit)]))
        if not budget.is_unlimited:
            writes.append(self.store.budgets.set_budget(session_scope(session.id), budget))
        # Begun together, in this order: they are written in this order, and most often by one commit.
        await asyncio.gather(*writes, self.store.tasks.create_task(task))

    def attach(
        self,
        session: Session | None,
        callback: PermissionCallback,
        *,
        channel: str,
        notify: Callable[[str], None] = lambda _sentence: None,
        on_waiting: Callable[[Sequence[PermissionRequest]], None] = lambda _waiting: None,
    ) -> asyncio.Task[None]:
        """Fill the session's one callback from here until the returned task is cancelled or the client is closed.

        Without a session: of every session that the principal may answer for. A responder that attaches to one
        has seen that it may be answered by that principal (``remote_responder.refusal_reason``).
        """
        from soong.orchestrator.approvals.remote_responder import RemoteResponder  # most clients answer nothing

        responder = RemoteResponder(
            self.store,
            self.notifier,
            self.subscriber,
            "" if session is None else session.id,
            self.settings.principal,
            channel,
            callback,
            self.settings,
            self.clock,
            notify,
            on_waiting,
        )
        task = asyncio.get_running_loop().create_task(responder.run())
        self._responders.append(task)
        return task

    async def view(self, task_id: str) -> TaskSnapshot:
        """Raises: NotFoundError."""
        return await snapshot_of(self.store, task_id)

    async def follow(
        self, task_id: str, *, new: "asyncio.Task[Subscription] | None" = None, for_result: bool = False
    ) -> AsyncGenerator[TaskSnapshot]:
        """Yield the state of the task whenever something may have changed, until nothing more happens by itself.

        ``new`` is the subscription to the session of a task that has just been submitted. If it is open, nothing has
        happened unheard: the first look comes a moment later, or with the end. ``for_result``: nobody watches, the last
        view is for the task's result; looks before it are few.

        A task that is cancelled or fails has ended before its running steps have: these get ``CLOSE_LIMIT_S``. A
        database or Redis that is away for a while is waited for: the rows still say what happened.
        """
        was_open = new is not None and new.done()
        opening = new or self.subscriber.subscribe_session((await self.store.tasks.task(task_id)).session_id)
        subscription = await opening
        loop = asyncio.get_running_loop()
        every_s = timing.POLL_ROWS_S if for_result else timing.LEAST_PAUSE_S
        ended_s: float | None = None
        end: TaskSnapshot | None = None
        try:
            if new is not None and (was_open or await self._status_again(task_id) is TaskStatus.RUNNING):
                end = await self._until_news(subscription, task_id, every_s, for_result=for_result)
            while True:
                begun_s = loop.time()
                view = end
                if view is None:
                    view = await _answered(lambda: snapshot_of(self.store, task_id, for_result=for_result))
                pause_s = max(every_s, (loop.time() - begun_s) * PAUSE_PER_LOOK)
                yield view
                now_s = loop.time()
                ended_s = (ended_s or now_s) if view.has_ended else None
                if ended_s is not None and (not view.held or now_s - ended_s >= timing.CLOSE_LIMIT_S):
                    return
                if ended_s is None:
                    end = await self._until_news(subscription, task_id, pause_s, for_result=for_result)
                else:
                    end = None
                    await subscription.wait(timing.LEAST_PAUSE_S)
        finally:
            await subscription.close()

    async def _until_news(
        self, subscription: Subscription, task_id: str, pause_s: float, *, for_result: bool
    ) -> TaskSnapshot | None:
        """Wait for the next look: not before ``pause_s`` have passed, but at once when the task has ended.

        ``for_result``: return that end, if it was heard of and the task is a plan's.
        """
        loop = asyncio.get_running_loop()
        begun_s = loop.time()
        heard = await subscription.wait(max(pause_s, timing.POLL_ROWS_S))
        while heard and (left_s := begun_s + pause_s - loop.time()) > 0:
            found = await (self._end_soon(task_id) if for_result else self._status_again(task_id))
            if isinstance(found, TaskEnd) and found.task.kind is not TaskKind.ASK:
                return TaskSnapshot(found.task, in_plan_order(found.steps), (), (), last_runs=found.last_runs)
            if found is not TaskStatus.RUNNING:
                return None
            heard = await subscription.wait(left_s)
        return None

    async def command(
        self, kind: CommandKind, task: Task, *, reason: str = "", limit_s: float = timing.PATIENCE_S
    ) -> None:
        """Ask the task's owner for something and wait until it is done.

        Raises:
            ConflictError: the owner refused; its words.
            UnavailableError: no owner did it in time. The command is stored, and the next owner will execute it.
        """
        await self.tasks.ask(kind, task, {"reason": reason}, limit_s=limit_s)

    async def close_when_done(self, task: Task) -> None:
        """Close the session of a completed task that does not close with it: a job of its owner may read it then."""
        session = await self.store.sessions.session(task.session_id)
        others = await self.store.tasks.list_tasks(session_id=session.id)
        if not session.is_closed and all(one.status is TaskStatus.COMPLETED for one in others):
            with suppress(UnavailableError):  # asked for, and then done by the next owner
                await self.command(CommandKind.CLOSE, task, limit_s=timing.CLOSE_LIMIT_S)

    async def pause(
        self, task: Task, *, reason: str, limit_s: float, when_paused: Callable[[], object] = lambda: None
    ) -> bool:
        """Pause a task and wait until no worker holds a step of it; False when that took longer than the limit.

        ``when_paused`` is called when no other step of it starts.
        """
        try:
            async with asyncio.timeout(limit_s):
                await self.command(CommandKind.PAUSE, task, reason=reason, limit_s=limit_s)
                when_paused()
                await self._until_nothing_held(task)
        except (TimeoutError, UnavailableError):
            return False
        return True

    async def _until_nothing_held(self, task: Task) -> None:
        subscription = await self.subscriber.subscribe_session(task.session_id)
        try:
            while (await self.view(task.id)).held:
                await subscription.wait(timing.LEAST_PAUSE_S)
        finally:
            await subscription.close()

    async def _end_soon(self, task_id: str) -> TaskEnd | TaskStatus:
        found = await self._end_again(task_id)
        for _ in range(LOOKS - 1):
            if found is not TaskStatus.RUNNING:
                break
            found = await self._end_again(task_id)
        return found

    async def _end_again(self, task_id: str) -> TaskEnd | TaskStatus:
        return await _answered(lambda: self.store.tasks.end_of(task_id))

    async def _status_again(self, task_id: str) -> TaskStatus:
        return await _answered(lambda: self.store.tasks.status(task_id))


async def _answered(read: Callable[[], Awaitable[T]]) -> T:
    """Read again and again while the database is away."""
    while True:
        try:
            return await read()
        except UnavailableError:
            await asyncio.sleep(timing.POLL_ROWS_S)


def in_plan_order(steps: Sequence[Step]) -> tuple[Step, ...]:
    """Return the steps with the children of each map step among them right below it, in item order."""
    keys = {step.key for step in steps}
    children: dict[str, list[Step]] = {}
    for step in steps:
        if step.map_key:
            children.setdefault(step.map_key, []).append(step)
    ordered: list[Step] = []
    for step in steps:
        if step.map_key not in keys:
            ordered += [step, *sorted(children.get(step.key, ()), key=lambda child: child.item_index or 0)]
    return tuple(ordered)


async def snapshot_of(store: Store, task_id: str, *, for_result: bool = False) -> TaskSnapshot:
    """Read the state of a task; ``for_result`` of one that has ended only what its result tells.

    Raises: NotFoundError.
    """
    task, own = await store.tasks.task_with_steps(task_id)
    planned = await tasks_planned_by(store, task)
    steps = [*in_plan_order(own)]
    for one in planned:
        steps += in_plan_order(await store.tasks.steps(one.id))
    if for_result and task.status.is_terminal:
        return TaskSnapshot(task, tuple(steps), (), (), planned=planned)
    scopes = (session_scope(task.session_id), DAY)
    pending, workers, budgets = await asyncio.gather(
        store.consent.pending(task.session_id),
        store.sessions.workers(),
        store.budgets.budgets(scopes, day=utc_date(time.time_ns() // 1000)),
    )
    ids = {task_id, *(one.id for one in planned)}
    return TaskSnapshot(
        task,
        tuple(steps),
        tuple(workers),
        tuple(one for one in pending if one.identity.task_id in ids),
        _lacks(task, steps, workers),
        planned,
        tuple(budgets[scope] for scope in scopes if scope in budgets),
    )


async def tasks_planned_by(store: Store, ask: Task) -> tuple[Task, ...]:
    """Return the tasks that the agent of an ask has made, oldest first; none of a plan."""
    if ask.kind is not TaskKind.ASK:
        return ()
    others = [one for one in await store.tasks.list_tasks(session_id=ask.session_id, limit=PAGE) if one.id != ask.id]
    roots = {one.id: (await store.runs.run(one.root_run_id)).identity.parent_run_id for one in others}
    return tuple(one for one in reversed(others) if roots[one.id] == ask.root_run_id)


async def brief_view(store: Store, task_id: str) -> TaskSnapshot:
    """Read the state of a task; of one with many steps, of these only the first, some that failed, and the counts.

    Raises: NotFoundError.
    """
    task = await store.tasks.task(task_id)
    tasks = (task, *await tasks_planned_by(store, task))
    totals = await counts_of(store, tasks)
    if sum(totals.values()) <= MANY_STEPS:
        return await snapshot_of(store, task_id)
    first = await steps_of(store, tasks, limit=BRIEF_STEPS)
    failed = await steps_of(store, tasks, statuses=(StepStatus.FAILED,), limit=BRIEF_STEPS)
    shown = {step.key: step for step in (*first, *failed)}
    return TaskSnapshot(task, in_plan_order([*shown.values()]), (), (), last_runs=LastRuns({}, ()), totals=totals)


async def steps_of(
    store: Store, tasks: Sequence[Task], *, after: str = "", statuses: Collection[StepStatus] = (), limit: int
) -> list[Step]:
    """Return the next steps of these tasks, task by task in order of creation, from behind the one of a key."""
    begun = after.partition("/")[0]
    places = [place for place, task in enumerate(tasks) if task.id == begun] if begun else [0]
    found: list[Step] = []
    for task in tasks[places[0] :] if places else ():
        if len(found) < limit:
            found += await store.tasks.step_page(task.id, after=after, statuses=statuses, limit=limit - len(found))
        after = ""
    return found


async def counts_of(store: Store, tasks: Sequence[Task]) -> Mapping[StepStatus, int]:
    """Return the number of steps of these tasks by status."""
    counted = Counter[StepStatus]()
    for task in tasks:
        counted.update(await store.tasks.counts(task.id))
    return counted


async def lack_of(store: Store, step: Step) -> str:
    """Return why no living worker may take a step that is ready; empty when one may, or it is not ready."""
    task = await store.tasks.task(step.task_id)
    return _lacks(task, [step], await store.sessions.workers()).get(step.key, "")


def _lacks(task: Task, steps: Sequence[Step], workers: Sequence[Worker]) -> dict[str, str]:
    """Return by step key what keeps the living workers from what is ready; where none lives, that is another matter."""
    if task.status is not TaskStatus.RUNNING or not any(worker.state is ProcessState.LIVE for worker in workers):
        return {}
    said = functools.cache(lambda pool, needs: lacking(pool, needs, workers))
    waiting = [step for step in steps if step.status is StepStatus.READY and step.claim_mode is ClaimMode.ASSIGNED]
    return {step.key: words for step in waiting if (words := said(step.pool, step.needs))}
