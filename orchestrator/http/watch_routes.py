"""What a console watches beyond lists: a task live, one step, the audit log."""

from collections.abc import Sequence
from typing import Annotated

from fastapi import APIRouter, Depends, Query
from starlette.requests import Request
from starlette.responses import Response

from soong.orchestrator.client.client import lack_of
from soong.orchestrator.client.outcome import step_report
from soong.orchestrator.http.authentication import Caller
from soong.orchestrator.http.context import Needs, api_of
from soong.orchestrator.http.events import EventStream
from soong.orchestrator.http.parameters import InSession, Limit, TaskId
from soong.orchestrator.http.problems import ProblemCode, ProblemError
from soong.orchestrator.http.schemas import AuditEntrySchema, Page, page_of, respond
from soong.orchestrator.http.strict import StrictRoute
from soong.orchestrator.schemas.run import RunDetail
from soong.orchestrator.schemas.task import StepDetail
from soong.shared.core.amounts import read_age
from soong.shared.core.errors import UsageError
from soong.shared.permissions.access.token import Right
from soong.shared.permissions.audit_log.entry import AuditKind

router = APIRouter(route_class=StrictRoute)

READER = Depends(Needs(Right.READ))

Since = Annotated[str, Query(max_length=10, description="Only of this time up to now, such as `12h` or `30d`.")]
AfterOrdinal = Annotated[int, Query(ge=0, le=2**53, description="`next` of the page before.")]
StepId = Annotated[str, Query(max_length=400, description="The step's id in its task.")]
Kinds = Annotated[Sequence[AuditKind], Query(description="Only entries of these kinds.")]


@router.get(
    "/v1/tasks/{task_id}/stream",
    tags=["tasks"],
    response_class=Response,
    responses={200: {"content": {"text/event-stream": {}}, "description": "An event `task`, events `change`, `end`."}},
)
async def stream_task(request: Request, task_id: TaskId, caller: Caller = READER) -> Response:
    """Follow a task: an event `task` with every step, then an event `change` with the steps that changed.

    Both have the task, its waiting questions and the tasks that its agent made. Steps have no output here
    (`GET /v1/tasks/{id}/step?id=…`). A reader that connects again begins with `task`, and has lost nothing. When
    the task has ended and nothing of it runs, an event `end` is the last.
    """
    api = api_of(request)
    await api.feeds.require(task_id)
    return EventStream(api.feeds.frames(task_id), api, caller)


@router.get("/v1/tasks/{task_id}/step", tags=["tasks"], response_model=StepDetail, dependencies=[READER])
async def show_step(request: Request, task_id: TaskId, id: StepId) -> Response:
    """Show a step: its output or error, what its run was given and denied, why no worker takes it."""
    store = api_of(request).client.store
    step = await store.tasks.step(f"{task_id}/{id}")
    granted = RunDetail.of(await store.runs.run(step.run_id)).tools if step.run_id else []
    report = await step_report(store, step, granted)
    return respond(StepDetail.detailed(step, report, await lack_of(store, step)))


@router.get("/v1/audit", tags=["service"], response_model=Page[AuditEntrySchema], dependencies=[READER])
async def list_audit(
    request: Request,
    session: InSession = "",
    kind: Kinds = (),
    since: Since = "400d",
    after: AfterOrdinal = 0,
    limit: Limit = 50,
) -> Response:
    """List who answered, decided and granted what, oldest first; `soong audit verify` checks the entries."""
    client = api_of(request).client
    since_us = client.clock.now_us() - age_s(since) * 1_000_000
    found = await client.store.audit.audit_entries(
        after=after, session_id=session, kinds=kind, since_us=max(0, since_us), limit=limit
    )
    last = str(found[-1].ordinal) if found else ""
    return respond(page_of([AuditEntrySchema.of(entry) for entry in found], limit, last))


def age_s(text: str) -> int:
    """Return an age in seconds. Raises: ProblemError (invalid_input)."""
    try:
        return read_age(text, "since")
    except UsageError as error:
        raise ProblemError(ProblemCode.INVALID_INPUT, str(error)) from error
