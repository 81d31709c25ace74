"""A task followed by long polls: how many steps are done, what runs, what failed, what waits for an answer."""

import hashlib
from dataclasses import dataclass
from typing import Annotated

from fastapi import APIRouter, Depends, Header
from starlette.requests import Request
from starlette.responses import Response

from soong.orchestrator.client.client import tasks_planned_by
from soong.orchestrator.http.authentication import Caller
from soong.orchestrator.http.context import Api, Needs, api_of, until_changed
from soong.orchestrator.http.parameters import TaskId, Wait
from soong.orchestrator.http.schemas import respond
from soong.orchestrator.http.strict import StrictRoute
from soong.orchestrator.schemas.progress import TaskProgress
from soong.shared.engine.tasks.status import TaskStatus
from soong.shared.engine.tasks.step import Task
from soong.shared.permissions.access.token import Right

router = APIRouter(route_class=StrictRoute, tags=["tasks"])

READER = Depends(Needs(Right.READ))

Seen = Annotated[str, Header(max_length=200, description="`ETag` of the state that was seen: 304 if it is still so.")]


@dataclass(slots=True)
class _ProgressQuery:
    """One caller's look at a task, as cheap as can be: steps are read only for the answer."""

    api: Api
    task: Task
    seen: str
    planned: tuple[Task, ...] = ()
    waiting: tuple[str, ...] = ()

    async def is_new(self) -> bool:
        """Look; say whether there is something to tell."""
        await self.look()
        return self.tag != self.seen if self.seen else self.task.status is not TaskStatus.RUNNING or bool(self.waiting)

    async def look(self) -> None:
        store = self.api.client.store
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
    request: Request,
    task_id: TaskId,
    wait: Wait = 0,
    if_none_match: Seen = "",
    caller: Caller = READER,
) -> Response:
    """Show how far a task is: steps by status, what runs, what failed, which questions wait.

    With `wait` the answer comes as soon as the task's status or its questions differ from those whose `ETag` is sent
    (without one: as soon as it has ended, is paused, or a question waits), or after so many seconds.
    """
    api = api_of(request)
    wanted = _ProgressQuery(api, await api.client.store.tasks.task(task_id), if_none_match)
    if wait:
        with api.held_open(caller):
            subscription = await api.subscriptions.subscribe_session(wanted.task.session_id)
            try:
                await until_changed(request, api, subscription, wanted.is_new, wait)
            finally:
                await subscription.close()
    await wanted.look()
    if wanted.seen == wanted.tag:
        return Response(status_code=304, headers={"ETag": wanted.tag})
    progress = await TaskProgress.read(api.client.store, (wanted.task, *wanted.planned), wanted.waiting)
    return respond(progress, headers={"ETag": wanted.tag})
