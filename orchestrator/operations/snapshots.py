"""The current state of a task with its steps, read for a result, a page or a picture."""

import functools
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Final

import msgspec

from soong.shared.core.value import Value
from soong.shared.engine.sessions.session import ProcessState, Worker
from soong.shared.engine.tasks.claims import lacking
from soong.shared.engine.tasks.spec import ClaimMode, StepStatus, TaskKind, TaskStatus
from soong.shared.engine.tasks.step import Step, Task
from soong.shared.storage.store import Store

PAGE: Final = 1000
MANY_STEPS: Final = 1_000
"""A task with more is not read as one."""
BRIEF_STEPS: Final = 60
"""Steps of such a task that are shown, and failed ones in addition."""


class TaskSnapshot(Value):
    """The current state of a task."""

    task: Task
    steps: tuple[Step, ...]
    planned: tuple[Task, ...] = ()
    """The tasks that the agent of an ask has made; their steps are among ``steps``."""
    lacks: Mapping[str, str] = msgspec.field(default_factory=dict)
    """By step key: why no worker may take what is ready."""
    totals: Mapping[StepStatus, int] | None = None
    """The number of steps by status, where ``steps`` are only the first of them."""

    @property
    def counts(self) -> Mapping[StepStatus, int]:
        return self.totals or Counter(step.status for step in self.steps)


async def snapshot_of(store: Store, task_id: str, *, brief: bool = False) -> TaskSnapshot:
    """Read the state of a task. ``brief``: of many steps only the first, some that failed, and the counts.

    Raises: NotFoundError.
    """
    if brief:
        task = await store.tasks.task(task_id)
        planned = await tasks_planned_by(store, task)
        totals = await counts_of(store, (task, *planned))
        if sum(totals.values()) > MANY_STEPS:
            first = await steps_of(store, (task, *planned), limit=BRIEF_STEPS)
            failed = await steps_of(store, (task, *planned), statuses=(StepStatus.FAILED,), limit=BRIEF_STEPS)
            shown = {step.key: step for step in (*first, *failed)}
            return TaskSnapshot(task, in_plan_order([*shown.values()]), totals=totals)
    task, own = await store.tasks.task_with_steps(task_id)
    planned = await tasks_planned_by(store, task)
    steps = [*in_plan_order(own)]
    for one in planned:
        steps += in_plan_order(await store.tasks.steps(one.id))
    workers = await store.sessions.workers() if task.status is TaskStatus.RUNNING else ()
    return TaskSnapshot(task, tuple(steps), planned, _lacks(task, steps, workers))


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


async def tasks_planned_by(store: Store, ask: Task) -> tuple[Task, ...]:
    """Return the tasks that the agent of an ask has made, oldest first; none of a plan."""
    if ask.kind is not TaskKind.ASK:
        return ()
    others = [one for one in await store.tasks.list_tasks(session_id=ask.session_id, limit=PAGE) if one.id != ask.id]
    roots = {one.id: (await store.runs.run(one.root_run_id)).identity.parent_run_id for one in others}
    return tuple(one for one in reversed(others) if roots[one.id] == ask.root_run_id)


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
