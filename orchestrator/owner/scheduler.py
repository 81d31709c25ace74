"""The scheduler: writes the consequences of a session's changes.

Maps are expanded, failures retried or settled, tasks ended. Everything is read from rows and written under the owner's
epoch, so a scheduler that dies in the middle is continued by the next one.

A task that an agent plans is that agent's while its run lasts: it ends the task, and a failure whose policy the plan
leaves open waits for what it decides, with all that depends on it (DAG-05). Its run over, the task is like any other.
An ask ends with its own run, and never here.
"""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from soong.shared.core import timing
from soong.shared.core.errors import (
    InvalidTransitionError,
    LimitExceededError,
    SoongError,
    TemplateError,
    UnavailableError,
)
from soong.shared.core.log import get_logger
from soong.shared.core.timing import Clock
from soong.shared.core.value import Value
from soong.shared.engine.runs.budgets import LIMIT_ENDS, TASK_LIMIT
from soong.shared.engine.runs.store import RunStore
from soong.shared.engine.sessions.session import Ownership
from soong.shared.engine.tasks.metrics import still_running
from soong.shared.engine.tasks.new_tasks import check_total, next_attempt
from soong.shared.engine.tasks.spec import FailurePolicy, StepStatus, TaskEvent, TaskStatus
from soong.shared.engine.tasks.step import MALFORMED, OpenTask, SessionWork, Step, StepError
from soong.shared.engine.tasks.store import FinishedTask, TaskStore
from soong.shared.engine.tasks.verdict import FailStep, GrowMap, StepVerdict, decided

log = get_logger(__name__)

NEVER_RETRIED: Final = frozenset({"permission_timeout", "aborted_tools", "poisoned", "cancelled", "invalid_input"})
"""Ends after which a person has to act first, whatever a worker says of them (DAG-05)."""


_MOVING: Final = (StepStatus.READY, StepStatus.RUNNING, StepStatus.BLOCKED, StepStatus.EXPANDING)
"""A step of one of these makes others possible; one that is pending or waiting waits for them."""

MAX_STARTS: Final = 2
"""An expansion that has ended two owners, or failed unforeseen in them, is not begun again."""

Compute: TypeAlias = Callable[[Callable[[], StepVerdict]], Awaitable[StepVerdict]]


class ReconcileResult(Value):
    """The result of one look, and when the session's next retry is due."""

    ended: tuple[FinishedTask, ...]
    due_us: int | None
    open_tasks: tuple[OpenTask, ...] = ()
    """The tasks that have not ended."""


async def at_once(make: Callable[[], StepVerdict]) -> StepVerdict:
    """Compute on the event loop, where everything else waits for it."""
    return make()


@dataclass(slots=True)
class Expander:
    """One transaction for each map step, guarded by owner epoch and status: repeating it changes nothing.

    The list of a map step can exceed the memory of its owner, and so can an item. The start of an expansion is
    therefore counted durably, as leases are: a step ends at most ``max_starts`` owners.
    """

    tasks: TaskStore
    runs: RunStore
    clock: Clock
    max_children: int = 0
    """Most children of the task's root run, 0 for any number."""
    compute: Compute = at_once
    """Makes the children. They may take seconds, in which the owner still beats and answers."""
    max_starts: int = MAX_STARTS
    _begun: set[str] = field(default_factory=set)
    """Map steps that this owner has begun and could not end, because the database was away: begun once, not twice."""
    _doubts: Counter[str] = field(default_factory=Counter)
    """By map step: starts whose commit was not confirmed to this owner. They may be counted, and ended no owner."""

    async def expand_all(self, ownership: Ownership) -> int:
        """Expand every map step of the session that is due; return how many."""
        steps = await self.tasks.steps_in(ownership, StepStatus.EXPANDING)
        for step in steps:
            if await self._is_safe(ownership, step):
                await self._expand(ownership, step)
                self._begun.discard(step.key)
                del self._doubts[step.key]
        return len(steps)

    async def _is_safe(self, ownership: Ownership, step: Step) -> bool:
        """Count the start of an expansion before it; fail a step of which the earlier ones have not come to an end."""
        if step.key in self._begun:
            return True
        try:
            starts = await self.tasks.begin_expansion(ownership, step.key)
        except UnavailableError:
            self._doubts[step.key] += 1
            raise
        if starts > self.max_starts + self._doubts[step.key]:
            words = (
                f"its expansion was begun {self.max_starts} times and ended its orchestrator each time, or failed "
                "there for an unknown reason; use fewer or smaller items"
            )
            await self._fail(ownership, step, StepError("poisoned", words))
            return False
        return starts > 0

    async def _expand(self, ownership: Ownership, step: Step) -> None:
        try:
            await self._expand_begun(ownership, step)
        except UnavailableError:
            self._begun.add(step.key)
            raise
        except asyncio.CancelledError:
            # This owner has to stop, which is not the step's fault. An error here would replace the cancellation.
            with suppress(SoongError):
                await self.tasks.begin_expansion(ownership, step.key, is_taken_back=True)
            raise

    async def _expand_begun(self, ownership: Ownership, step: Step) -> None:
        task = await self.tasks.task(step.task_id)
        root = await self.runs.run(task.root_run_id)
        results = [await self.tasks.result(key) for key in step.depends_on]
        malformed = next((result.malformed for result in results if result.malformed), "")
        if malformed:
            await self._fail(ownership, step, StepError(MALFORMED, malformed))
            return
        dependencies = {result.step_id: result for result in results}
        try:
            verdict = await self.compute(lambda: decided(step, task, dependencies, root.identity))
            if self.max_children and isinstance(verdict, GrowMap):
                counts = await self.tasks.counts(step.task_id)
                check_total(sum(counts.values()), len(verdict.children), self.max_children)
        except TemplateError as error:
            await self._fail(ownership, step, StepError(error.code, str(error)))
            return
        except LimitExceededError as error:
            await self._fail(ownership, step, StepError("limit_exceeded", str(error)))
            return
        await self.tasks.write_verdict(ownership, step.key, verdict, now_us=self.clock.now_us())
        log.info("step_decided", step=step.key, verdict=type(verdict).__name__)

    async def _fail(self, ownership: Ownership, step: Step, error: StepError) -> None:
        log.warning("expansion_failed", step=step.key, error=error.message)
        await self.tasks.write_verdict(ownership, step.key, FailStep(error), now_us=self.clock.now_us())


@dataclass(slots=True)
class Scheduler:
    """Looks at one owned session at a time."""

    tasks: TaskStore
    runs: RunStore
    expander: Expander
    clock: Clock

    async def reconcile(self, ownership: Ownership, work: SessionWork | None = None) -> ReconcileResult:
        """Do all that is due in the session; ``work`` is what has just been read of it."""
        work = work or await self.tasks.session_work(ownership)
        due = None if work.retry_us is None else await self._promote(ownership)
        if work.is_expanding and await self.expander.expand_all(ownership):
            work = await self.tasks.session_work(ownership)
        while work.has_failures and (failed := await self._undecided(ownership, work)):
            retries = [await self._settle(ownership, step) for step in failed]
            due = min((at for at in (due, *retries) if at is not None), default=None)
            work = await self.tasks.session_work(ownership)
        ended: list[FinishedTask] = []
        for task in work.open_tasks:
            if task.is_due and not task.has_planner:
                finished = await self.tasks.finish_task(ownership, task.id, now_us=self.clock.now_us())
                ended += [] if finished is None else [finished]
        if work.has_overdue:
            ended += await self._fail_overdue(ownership, work)
        left = tuple(task for task in work.open_tasks if task.id not in {one.task_id for one in ended})
        return ReconcileResult(tuple(ended), due, left)

    async def _undecided(self, ownership: Ownership, work: SessionWork) -> list[Step]:
        """Return the failures that are ours to settle: those that no agent is still to decide."""
        planned = {task.id for task in work.open_tasks if task.has_planner}
        failed = await self.tasks.failures(ownership)
        return [
            step
            for step in failed
            if may_retry(step)
            or step.spec.on_failure is not None
            or step.task_id not in planned
            or await self._has_reached_limit(step)
        ]

    async def _has_reached_limit(self, step: Step) -> bool:
        """Say whether a step failed by a limit of its task: what it must not exceed itself has the same error type."""
        if step.error is None or step.error.type != TASK_LIMIT or not (step.spec.is_limited and step.run_id):
            return False
        return (await self.runs.run(step.run_id)).end_reason in LIMIT_ENDS

    async def _promote(self, ownership: Ownership) -> int | None:
        """Make due retries ready; return when the next is due.

        No retry waits longer than STEP_BACKOFF_LIMIT_S: one that seems to was written, or is read now, by a wall clock
        that has jumped, and is as good as due.
        """
        now_us = self.clock.now_us()
        due = await self.tasks.promote_due(ownership, now_us=now_us)
        while due is not None and due - now_us > timing.STEP_BACKOFF_LIMIT_S * 1_000_000:
            log.warning("clock_jumped", session=ownership.session_id, ahead_s=(due - now_us) // 1_000_000)
            due = await self.tasks.promote_due(ownership, now_us=due)
        return due

    async def _settle(self, ownership: Ownership, step: Step) -> int | None:
        """Retry the step (and return when) or make its failure final, unless another one of the same look has done it.

        FAIL_TASK settles all.
        """
        now_us = self.clock.now_us()
        try:
            if may_retry(step):
                due_us = now_us + int(backoff_s(step) * 1_000_000)
                run = next_attempt(step, await self.runs.run(step.run_id))
                await self.tasks.retry_step(ownership, step.key, run, not_before_us=due_us, now_us=now_us)
                return due_us
            words = step.error.message if step.error else ""
            if await self._has_reached_limit(step):
                log.info("task_stopped", task=step.task_id, reason=words)
                await self.tasks.stop_task(ownership, step.task_id, reason=words, now_us=now_us)
            else:
                log.info("step_failed", step=step.key, error=words, policy=step.on_failure)
                await self.tasks.settle_failure(ownership, step.key, step.on_failure, now_us=now_us)
        except InvalidTransitionError as error:
            log.info("settled_already", step=step.key, reason=str(error))
        return None

    async def _fail_overdue(self, ownership: Ownership, work: SessionWork) -> list[FinishedTask]:
        """Fail the tasks that have nothing left but steps whose time is over and whose functions still run.

        The steps stay leased until their functions end; a step that is tried again, or whose failure is kept for its
        dependents, is waited for until its function counts as stuck.
        """
        ended = []
        for task in work.open_tasks:
            if task.has_planner or task.status is not TaskStatus.RUNNING:
                continue
            final = [step for step in await self.tasks.overdue(ownership, task.id) if _is_final(step)]
            if final and (_ends_task(final) or await self._waits_only_for(task, final, work)):
                error = final[0].error
                reason = f"{final[0].step_id}: {error.message if error else ''}; {still_running(final)}"
                now_us = self.clock.now_us()
                await self.tasks.end_task(ownership, task.id, TaskEvent.FAIL, reason=reason, now_us=now_us)
                ended.append(FinishedTask(task.id, TaskStatus.FAILED))
        return ended

    async def _waits_only_for(self, task: OpenTask, final: Sequence[Step], work: SessionWork) -> bool:
        counts = await self.tasks.counts(task.id)
        return work.retry_us is None and sum(counts.get(status, 0) for status in _MOVING) <= len(final)


def _is_final(step: Step) -> bool:
    """Say whether an overdue step fails for good. One that is not retryable is stuck, or has reached a task's limit."""
    assert step.error is not None
    return not step.error.retryable or (not may_retry(step) and step.on_failure is not FailurePolicy.KEEP)


def _ends_task(final: Sequence[Step]) -> bool:
    return any(
        step.on_failure is FailurePolicy.FAIL_TASK or (step.error is not None and step.error.type == TASK_LIMIT)
        for step in final
    )


def backoff_s(step: Step) -> float:
    """Return the wait before the next attempt: doubled each time, at most STEP_BACKOFF_LIMIT_S."""
    return float(min(step.spec.backoff_s * 2 ** (step.attempt - 1), timing.STEP_BACKOFF_LIMIT_S))


def may_retry(step: Step) -> bool:
    """Say whether a failed step is tried again by itself: its run found that it may succeed, and retries are left."""
    error = step.error
    if error is None or not error.retryable or error.type in NEVER_RETRIED:
        return False
    return bool(step.run_id) and step.attempt < step.max_attempts
