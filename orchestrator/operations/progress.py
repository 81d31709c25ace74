"""A task followed: by long polls of its progress, by its live stream, step by step.

A reader of the stream gets the changes since its last version. A step is encoded once for each of its states, and all
readers of the same version get the same bytes.
"""

import asyncio
import functools
import hashlib
import time
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field
from typing import Annotated

from fastapi import APIRouter, Header, Query
from starlette.responses import Response

from soong.orchestrator.operations.context import Left, Reader, Service, ServiceParts, until_enough
from soong.orchestrator.operations.documents import END, OperationReply, json_bytes
from soong.orchestrator.operations.events import EventStream
from soong.orchestrator.operations.feeds import Following
from soong.orchestrator.operations.outcome import (
    counts_of,
    lack_of,
    missing_function,
    step_detail,
    steps_of,
    tasks_planned_by,
)
from soong.orchestrator.operations.strict import StrictRoute, TaskId, Wait
from soong.orchestrator.schemas.base import instant
from soong.orchestrator.schemas.run import tools_of
from soong.orchestrator.schemas.task import MOST_SHOWN, FailedStep, RunningStep, StepDetail, TaskProgress, TaskSchema
from soong.shared.core import timing
from soong.shared.core.errors import UnavailableError
from soong.shared.core.jsontext import Json
from soong.shared.core.timing import utc_date
from soong.shared.core.value import Value
from soong.shared.engine.runs.budgets import DAY, charged_text, session_scope
from soong.shared.engine.sessions.session import ProcessState, Worker
from soong.shared.engine.tasks.claims import lacking
from soong.shared.engine.tasks.spec import ClaimMode, StepStatus, TaskStatus
from soong.shared.engine.tasks.step import Task
from soong.shared.engine.tasks.store import StepSnapshot
from soong.shared.storage.store import Store


@dataclass(slots=True)
class _Known:
    """A step as its readers have it, and the version in which it changed last."""

    fixed: bytes
    """The facts that never change: an object of JSON without its last brace."""
    state: StepSnapshot
    version: int
    pool: str
    needs: tuple[str, ...]
    is_assigned: bool
    lacks: str = ""
    """Why no living worker may take it, where it is ready."""
    _text: bytes = b""

    def change(self, state: StepSnapshot, lacks: str, version: int) -> None:
        self.state, self.lacks, self.version, self._text = state, lacks, version, b""

    @property
    def text(self) -> bytes:
        """The step as JSON, encoded when it is first asked for."""
        if self._text:
            return self._text
        state = self.state
        changing: dict[str, Json] = {
            "status": str(state.status),
            "outcome": None if state.outcome is None else str(state.outcome),
            "run": state.run_id,
            "worker": state.worker_id,
            "attempt": state.attempt,
            "progress": state.progress,
            "error": None if state.error is None else state.error.as_json(),
            "started": instant(state.started_us),
            "ended": instant(state.ended_us),
            "lost_leases": state.lost_leases,
            "lost_to": state.lost_to,
            "lacks": self.lacks,
        }
        self._text = b"%b,%b" % (self.fixed, json_bytes(changing)[1:])
        return self._text


@dataclass(slots=True, eq=False)
class TaskWatch:
    """One task that is watched. ``version`` grows with every change of what is shown."""

    task_id: str
    store: Store
    version: int = 0
    is_over: bool = False
    _task: Task | None = None
    _steps: dict[str, _Known] = field(default_factory=dict)
    _head: dict[str, Json] = field(default_factory=dict)
    _frames: dict[int, bytes] = field(default_factory=dict)
    """The change since each version that some reader has, as it is sent: made once for all who are there."""

    def since(self, version: int) -> bytes:
        """Return what has changed since a version, as an event."""
        if version not in self._frames:
            event, head = b"change" if version else b"task", json_bytes(self._head)[:-1]
            changed = b",".join(one.text for one in self._steps.values() if one.version > version)
            self._frames[version] = b'event: %b\ndata: %b,"steps":[%b]}\n\n' % (event, head, changed)
        return self._frames[version]

    async def look(self) -> "tuple[TaskWatch, int]":
        """Read what has changed; return this with its version, for comparisons."""
        status, _session = await self.store.tasks.status(self.task_id)
        if self._task is None or self._task.status is not status:
            self._task = await self.store.tasks.task(self.task_id)
        states = await self.store.tasks.step_states(self.task_id)
        if len(states) != len(self._steps):
            await self._take_in_new_steps()
        workers = await self.store.sessions.workers()
        lacks = self._lacks(states, workers) if status is TaskStatus.RUNNING else {}
        known = ((self._steps[state.key], state, lacks.get(state.key, "")) for state in states)
        changed = [(one, state, words) for one, state, words in known if (state, words) != (one.state, one.lacks)]
        for one, state, words in changed:
            one.change(state, words, self.version + 1)
        head = await self._head_of(self._task, Counter(state.status for state in states), lacks, workers)
        was_over = self.is_over
        self.is_over = status.is_terminal and not any(state.status.is_leased for state in states)
        if changed or head != self._head or (self.is_over and not was_over):
            self._head, self.version = head, self.version + 1
            self._frames.clear()
        return self, self.version

    def _lacks(self, states: Sequence[StepSnapshot], workers: Sequence[Worker]) -> dict[str, str]:
        """Return by step what keeps the living workers from what is ready; where none lives, that is another matter."""
        if not any(worker.state is ProcessState.LIVE for worker in workers):
            return {}
        said = functools.cache(lambda pool, needs: lacking(pool, needs, workers))
        ready = [self._steps[state.key] for state in states if state.status is StepStatus.READY]
        found = {one.state.key: said(one.pool, one.needs) for one in ready if one.is_assigned}
        return {key: words for key, words in found.items() if words}

    async def _head_of(
        self, task: Task, counts: Mapping[StepStatus, int], lacks: Mapping[str, str], workers: Sequence[Worker]
    ) -> dict[str, Json]:
        """Return the task with what it has to run with: workers, budgets, and the function that it lacks."""
        waiting = await self.store.consent.questions(session_id=task.session_id)
        scopes = (session_scope(task.session_id), DAY)
        budgets = await self.store.budgets.budgets(scopes, day=utc_date(time.time_ns() // 1000))
        needed = [(key.partition("/")[2], self._steps[key].needs) for key in lacks]
        return {
            "task": TaskSchema.of(task, step_counts=counts).model_dump(mode="json"),
            "kind": str(task.kind),
            "root_run": task.root_run_id,
            "approvals": [one.request.id for one in waiting if one.answer is None],
            "planned": [one.id for one in await tasks_planned_by(self.store, task)],
            "workers": [
                {"name": one.node_name, "state": str(one.state), "slots": one.slots, "busy": one.busy}
                for one in workers
            ],
            "budgets": [
                {
                    "scope": scope,
                    "charged": ", ".join(filter(None, charged_text(budgets[scope]))),
                    "share": budgets[scope].share,
                }
                for scope in scopes
                if scope in budgets
            ],
            "missing_function": missing_function(needed, workers),
        }

    async def _take_in_new_steps(self) -> None:
        for step in await self.store.tasks.steps(self.task_id):
            if step.key not in self._steps:
                parent = f"{step.task_id}/"
                fixed: dict[str, Json] = {
                    "id": step.step_id,
                    "title": step.title,
                    "kind": str(step.kind),
                    "map": step.map_key.removeprefix(parent),
                    "depends_on": [key.removeprefix(parent) for key in step.depends_on],
                    "definition": step.definition,
                    "is_pull_worker": step.is_pull_worker,
                    "claim": str(step.claim_mode),
                }
                self._steps[step.key] = _Known(
                    json_bytes(fixed)[:-1],
                    StepSnapshot.of(step),
                    self.version + 1,
                    step.pool,
                    step.needs,
                    step.claim_mode is ClaimMode.ASSIGNED,
                )


async def task_frames(service: ServiceParts, task_id: str, session_id: str) -> AsyncGenerator[bytes]:
    """Yield a task as it is, then every change, then the end. Raises: NotFoundError."""
    watch, seen = TaskWatch(task_id, service.store), 0
    with service.feeds.follow(
        ("task", task_id), watch.look, lambda: service.subscriptions.session(session_id)
    ) as following:
        while True:
            watch, _version = await following.next()
            if seen != watch.version:
                text, seen = watch.since(seen), watch.version
                yield text
            if watch.is_over and seen == watch.version:
                yield END
                return


router = APIRouter(route_class=StrictRoute, tags=["tasks"])

Seen = Annotated[str, Header(max_length=200, description="`ETag` of the state that was seen: 304 if it is still so.")]

StepId = Annotated[str, Query(max_length=400, description="The step's id in its task.")]


class ProgressState(Value):
    """A task as those see it who wait for it, as cheap as can be: steps are read only for the answer."""

    task: Task
    planned: tuple[Task, ...]
    waiting: tuple[str, ...]
    """Questions of it that wait for an answer."""

    @property
    def tag(self) -> str:
        """A tag that is another whenever the task's status changes, or a question of it comes or goes."""
        state = ",".join((self.task.status, *self.waiting))
        return f'"{hashlib.sha256(state.encode()).hexdigest()[:32]}"'


def followed_progress(
    service: ServiceParts, task_id: str, session_id: str
) -> AbstractContextManager[Following[ProgressState]]:
    """Follow a task as those do who wait for it."""

    async def look() -> ProgressState:
        store = service.store
        task = await store.tasks.task(task_id)
        planned = await tasks_planned_by(store, task)
        if task.status.is_terminal:
            return ProgressState(task, planned, ())
        ids = {task_id, *(one.id for one in planned)}
        questions = await store.consent.questions(session_id=session_id)
        open_ones = (one.request for one in questions if one.is_pending and one.answer is None)
        return ProgressState(task, planned, tuple(one.id for one in open_ones if one.identity.task_id in ids))

    key = ("progress", task_id)
    return service.feeds.follow(key, look, lambda: service.subscriptions.session(session_id), is_quick=True)


async def until_over(
    service: ServiceParts, task_id: str, session_id: str, look: Callable[[], Awaitable[None]] | None = None
) -> TaskStatus:
    """Return when nothing more happens to a task by itself; ``look`` is called now and then until then.

    A task that is cancelled or fails has ended before its running steps have: they are waited for, not for long. A
    database that is away is waited for.
    """
    now_s = asyncio.get_running_loop().time
    with followed_progress(service, task_id, session_id) as following:
        state: ProgressState | None = None
        while state is None or state.task.status is TaskStatus.RUNNING:
            with suppress(TimeoutError, UnavailableError):
                async with asyncio.timeout(timing.POLL_ROWS_S):
                    state = await following.next()
                    continue
            if look is not None:
                await look()
    status = state.task.status
    until_s = now_s() + (timing.CLOSE_LIMIT_S if status.is_terminal else timing.RELEASE_LIMIT_S)
    while now_s() < until_s:
        with suppress(UnavailableError):
            tasks = (task_id, *(one.id for one in state.planned))
            states = [await service.store.tasks.step_states(one) for one in tasks]
            if not any(one.status.is_leased for of_task in states for one in of_task):
                break
        await asyncio.sleep(timing.LEAST_PAUSE_S)
    return status


@router.get(
    "/v1/tasks/{task_id}/progress",
    response_model=TaskProgress,
    responses={304: {"description": "Nothing has changed within `wait` seconds."}},
)
async def task_progress(
    service: Service, caller: Reader, has_left: Left, task_id: TaskId, wait: Wait = 0, if_none_match: Seen = ""
) -> OperationReply:
    """Show how far a task is: steps by status, what runs, what failed, which questions wait.

    With `wait` the answer comes as soon as the task's status or its questions differ from those whose `ETag` is sent
    (without one: as soon as it has ended, is paused, or a question waits), or after so many seconds.
    """

    async def is_new(state: ProgressState) -> bool:
        if if_none_match:
            return state.tag != if_none_match
        return state.task.status is not TaskStatus.RUNNING or bool(state.waiting)

    task = await service.store.tasks.task(task_id)
    with (
        service.held_open(caller, is_waiting=wait > 0),
        followed_progress(service, task_id, task.session_id) as following,
    ):
        await until_enough(service, caller, has_left, following, is_new, wait)
        state = following.feed.value
    if state.tag == if_none_match:
        return OperationReply(None, 304, {"ETag": state.tag})
    return OperationReply(await _progress_document(service.store, state), headers={"ETag": state.tag})


async def _progress_document(store: Store, state: ProgressState) -> TaskProgress:
    tasks = (state.task, *state.planned)
    leased = [status for status in StepStatus if status.is_leased]
    running = await steps_of(store, tasks, statuses=leased, limit=MOST_SHOWN)
    failed = await steps_of(store, tasks, statuses=(StepStatus.FAILED,), limit=MOST_SHOWN)
    return TaskProgress.of(
        state.task,
        step_counts=await counts_of(store, tasks),
        running=[RunningStep.of(one) for one in running],
        failed=[FailedStep.of(one) for one in failed],
        approvals=list(state.waiting),
    )


@router.get(
    "/v1/tasks/{task_id}/stream",
    response_class=Response,
    responses={200: {"content": {"text/event-stream": {}}, "description": "An event `task`, events `change`, `end`."}},
)
async def stream_task(service: Service, caller: Reader, task_id: TaskId) -> Response:
    """Follow a task: an event `task` with every step, then an event `change` with the steps that changed.

    Both have the task, its waiting questions and the tasks that its agent made. Steps have no output here
    (`GET /v1/tasks/{id}/step?id=…`). A reader that connects again begins with `task`, and has lost nothing. When
    the task has ended and nothing of it runs, an event `end` is the last.
    """
    _status, session_id = await service.store.tasks.status(task_id)
    return EventStream(task_frames(service, task_id, session_id), service, caller)


@router.get("/v1/tasks/{task_id}/step")
async def show_step(service: Service, _caller: Reader, task_id: TaskId, id: StepId) -> StepDetail:
    """Show a step: its output or error, what its run was given and denied, why no worker takes it."""
    store = service.store
    step = await store.tasks.step(f"{task_id}/{id}")
    granted = tools_of((await store.runs.run(step.run_id)).surface) if step.run_id else []
    return await step_detail(store, step, granted, await lack_of(store, step))
