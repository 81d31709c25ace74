"""A task followed: by long polls of its progress, by its live stream, step by step."""

import asyncio
import hashlib
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager, suppress
from typing import Annotated

from fastapi import APIRouter, Header, Query
from starlette.responses import Response

from soong.orchestrator.operations.context import Left, Reader, Service, ServiceParts, until_enough
from soong.orchestrator.operations.documents import OperationReply
from soong.orchestrator.operations.events import EventStream
from soong.orchestrator.operations.feeds import Following
from soong.orchestrator.operations.outcome import step_detail
from soong.orchestrator.operations.snapshots import counts_of, lack_of, steps_of, tasks_planned_by
from soong.orchestrator.operations.strict import StrictRoute, TaskId, Wait
from soong.orchestrator.operations.task_feed import task_frames
from soong.orchestrator.schemas.run import tools_of
from soong.orchestrator.schemas.task import MOST_SHOWN, FailedStep, RunningStep, StepDetail, TaskProgress
from soong.shared.core import timing
from soong.shared.core.errors import UnavailableError
from soong.shared.core.value import Value
from soong.shared.engine.tasks.spec import StepStatus, TaskStatus
from soong.shared.engine.tasks.step import Task
from soong.shared.storage.store import Store

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
    if ("task", task_id) not in service.feeds.open:
        await service.store.tasks.status(task_id)
    return EventStream(task_frames(service, task_id), service, caller)


@router.get("/v1/tasks/{task_id}/step")
async def show_step(service: Service, _caller: Reader, task_id: TaskId, id: StepId) -> StepDetail:
    """Show a step: its output or error, what its run was given and denied, why no worker takes it."""
    store = service.store
    step = await store.tasks.step(f"{task_id}/{id}")
    granted = tools_of((await store.runs.run(step.run_id)).surface) if step.run_id else []
    return await step_detail(store, step, granted, await lack_of(store, step))
