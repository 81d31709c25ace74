"""A task followed: by long polls of its progress, by its live stream, step by step."""

import hashlib
from dataclasses import dataclass
from typing import Annotated

from fastapi import APIRouter, Header, Query
from starlette.responses import Response

from soong.orchestrator.client.client import lack_of, tasks_planned_by
from soong.orchestrator.client.outcome import step_report
from soong.orchestrator.operations.context import Left, Reader, Service, until_changed
from soong.orchestrator.operations.documents import OperationReply
from soong.orchestrator.operations.events import EventStream
from soong.orchestrator.operations.strict import StrictRoute, TaskId, Wait
from soong.orchestrator.schemas.run import tools_of
from soong.orchestrator.schemas.task import StepDetail, TaskProgress
from soong.shared.engine.tasks.status import TaskStatus
from soong.shared.engine.tasks.step import Task

router = APIRouter(route_class=StrictRoute, tags=["tasks"])

Seen = Annotated[str, Header(max_length=200, description="`ETag` of the state that was seen: 304 if it is still so.")]

StepId = Annotated[str, Query(max_length=400, description="The step's id in its task.")]


@dataclass(slots=True)
class _ProgressQuery:
    """One caller's look at a task, as cheap as can be: steps are read only for the answer."""

    service: Service
    task: Task
    seen: str
    planned: tuple[Task, ...] = ()
    waiting: tuple[str, ...] = ()

    async def is_new(self) -> bool:
        """Look; say whether there is something to tell."""
        await self.look()
        return self.tag != self.seen if self.seen else self.task.status is not TaskStatus.RUNNING or bool(self.waiting)

    async def look(self) -> None:
        store = self.service.store
        self.task = await store.tasks.task(self.task.id)
        self.planned = await tasks_planned_by(store, self.task)
        ids = {self.task.id, *(one.id for one in self.planned)}
        questions = await store.consent.questions(session_id=self.task.session_id)
        open_ones = (one.request for one in questions if one.is_pending and one.answer is None)
        self.waiting = tuple(one.id for one in open_ones if one.identity.task_id in ids)

    @property
    def tag(self) -> str:
        """A tag that is another whenever the task's status changes, or a question of it comes or goes."""
        state = ",".join((self.task.status, *self.waiting))
        return f'"{hashlib.sha256(state.encode()).hexdigest()[:32]}"'


@router.get(
    "/v1/tasks/{task_id}/progress",
    response_model=TaskProgress,
    responses={304: {"description": "Nothing has changed within `wait` seconds."}},
)
async def task_progress(
    service: Service,
    caller: Reader,
    has_left: Left,
    task_id: TaskId,
    wait: Wait = 0,
    if_none_match: Seen = "",
) -> OperationReply:
    """Show how far a task is: steps by status, what runs, what failed, which questions wait.

    With `wait` the answer comes as soon as the task's status or its questions differ from those whose `ETag` is sent
    (without one: as soon as it has ended, is paused, or a question waits), or after so many seconds.
    """
    wanted = _ProgressQuery(service, await service.store.tasks.task(task_id), if_none_match)
    if wait:
        with service.held_open(caller):
            subscription = await service.subscriptions.subscribe_session(wanted.task.session_id)
            try:
                await until_changed(service, caller, has_left, subscription, wanted.is_new, wait)
            finally:
                await subscription.close()
    await wanted.look()
    if wanted.seen == wanted.tag:
        return OperationReply(None, 304, {"ETag": wanted.tag})
    progress = await TaskProgress.read(service.store, (wanted.task, *wanted.planned), wanted.waiting)
    return OperationReply(progress, headers={"ETag": wanted.tag})


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
    await service.feeds.require(task_id)
    return EventStream(service.feeds.frames(task_id), service, caller)


@router.get("/v1/tasks/{task_id}/step")
async def show_step(service: Service, _caller: Reader, task_id: TaskId, id: StepId) -> StepDetail:
    """Show a step: its output or error, what its run was given and denied, why no worker takes it."""
    store = service.store
    step = await store.tasks.step(f"{task_id}/{id}")
    granted = tools_of((await store.runs.run(step.run_id)).surface) if step.run_id else []
    report = await step_report(store, step, granted)
    return StepDetail.of(step, report, lacks=await lack_of(store, step))
