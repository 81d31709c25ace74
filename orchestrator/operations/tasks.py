"""Tasks: submission, state and control."""

import asyncio
from collections.abc import Callable
from typing import Annotated, Any, ClassVar, Final, Literal, TypeAlias, TypeVar

from fastapi import APIRouter, Header, Query
from msgspec.structs import replace
from pydantic import Field
from starlette.responses import Response

from soong.orchestrator.client.catalog import Catalogue
from soong.orchestrator.client.client import (
    Client,
    Submission,
    brief_view,
    counts_of,
    in_plan_order,
    snapshot_of,
    steps_of,
    tasks_planned_by,
)
from soong.orchestrator.client.outcome import outcome_of
from soong.orchestrator.client.submission import Ids, NextAsk, follow_up, new_ids, title_of
from soong.orchestrator.client.task_limits import raise_limits
from soong.orchestrator.operations.authentication import Caller
from soong.orchestrator.operations.context import Reader, Runner, Service, check_own, check_steering
from soong.orchestrator.operations.documents import (
    Page,
    PlanSchema,
    PreviewSchema,
    Reply,
    Submitted,
    TaskDetail,
    page_of,
)
from soong.orchestrator.operations.events import TASKS_TOLD
from soong.orchestrator.operations.problems import ProblemCode, ProblemError
from soong.orchestrator.operations.strict import (
    MAX_LIMIT,
    Body,
    Cursor,
    InSession,
    Limit,
    SessionId,
    StepCursor,
    StrictRoute,
    TaskId,
)
from soong.orchestrator.operations.submissions import (
    AskBody,
    FollowUpBody,
    PlanBody,
    PreviewBody,
    SubmissionBody,
    check_follow_up,
    ids_of,
    prepared,
    prepared_ask,
    preview_document,
    previewed,
    read_plan,
)
from soong.orchestrator.schemas.run import SessionSchema
from soong.orchestrator.schemas.task import StepSchema, TaskResult, TaskSchema
from soong.shared.core.errors import ConflictError, NotFoundError
from soong.shared.core.telemetry import well_formed
from soong.shared.engine.runs.budgets import NO_BUDGET, parse_budget
from soong.shared.engine.runs.record import Run
from soong.shared.engine.tasks.growth import MAX_PULL_WORKERS, planned_task
from soong.shared.engine.tasks.kinds import TaskKind
from soong.shared.engine.tasks.plan.graph import mermaid
from soong.shared.engine.tasks.plan.kinds.agent import read_settings
from soong.shared.engine.tasks.plan.models import TaskLimitsDocument
from soong.shared.engine.tasks.plan.picture import svg
from soong.shared.engine.tasks.plan.reader import planned_limits
from soong.shared.engine.tasks.pull_workers import SAYS_WHAT_TO_DO
from soong.shared.engine.tasks.service import TaskService
from soong.shared.engine.tasks.spec import StepSpec
from soong.shared.engine.tasks.step import Task
from soong.shared.permissions.access.token import Right
from soong.shared.storage.store import Store

router = APIRouter(route_class=StrictRoute, tags=["tasks"])

Reason = Annotated[str, Field(max_length=2_000, description="The reason, for the record.")]


class CommandBody(Body):
    reason: Reason = ""


class ResumeBody(CommandBody):
    budget: str = Field(
        default="", max_length=100, description="What its session may use in all from now on, as in a submission."
    )
    limits: TaskLimitsDocument | None = Field(
        default=None, description="Limits of its plan, in all from the task's beginning; those left out stay."
    )

    @property
    def raises_limits(self) -> bool:
        """Whether it permits the task to use more, which only an approver may."""
        return bool(self.budget) or self.limits is not None


class RetryBody(CommandBody):
    start: str = Field(
        default="", alias="from", max_length=64, description="Rerun this step and everything downstream of it."
    )


class DispatchBody(Body):
    """What runs that take a task's steps one by one are to be; as `agent.dispatch_worker` takes it."""

    holds_plan: ClassVar[bool] = True

    count: int = Field(default=1, ge=1, le=MAX_PULL_WORKERS, description="How many; each takes a worker's slot.")
    max_steps: int | None = Field(default=None, ge=1, description="Most steps that each takes; null: all there are.")
    agent: str = Field(default="", max_length=200, description="Their agent definition.")
    model: str = Field(default="", max_length=200, description="As provider:name; else the service's.")
    instructions: str = Field(default="", description="Their instructions in addition to how to pull.")
    allowed_tools: list[str] | None = Field(
        default=None, description="Tools that they have in addition to those for steps."
    )
    script: str = Field(default="", max_length=200, description="Scripted agent that they run without a model.")
    pool: str = Field(default="", max_length=64, description="Queue that they wait in.")

    @property
    def says_what_to_do(self) -> bool:
        """Whether its author, and not the plan, says what the pull workers do and with what."""
        return any(getattr(self, name) not in ("", None) for name in SAYS_WHAT_TO_DO)


Brief = Annotated[bool, Query(description="With more than 1,000 steps the first and some that failed, not all.")]
NO_REASON = CommandBody()
_Work = TypeVar("_Work", SubmissionBody, AskBody)
Prepare: TypeAlias = Callable[[_Work, str, Ids, Catalogue, Client], Submission]
"""Makes a body ready to be written, for a principal and with these ids."""
MOST_DRAWN: Final = 1_000
"""Steps of a task in one picture."""

IdempotencyKey = Annotated[
    str,
    Header(
        alias="Idempotency-Key",
        pattern=r"^[\x21-\x7e]{0,255}$",
        description="A name of the caller's own for this submission, such as a UUID.",
    ),
]

TraceParent = Annotated[
    str,
    Header(
        alias="traceparent",
        description="The parent of the task's trace, as W3C Trace Context has it; a malformed one is ignored.",
    ),
]


@router.post(
    "/v1/tasks",
    status_code=201,
    response_model=Submitted,
    responses={200: {"model": Submitted, "description": "It was submitted before, with this `Idempotency-Key`."}},
)
async def submit_task(
    service: Service,
    caller: Runner,
    body: SubmissionBody,
    idempotency_key: IdempotencyKey = "",
    traceparent: TraceParent = "",
) -> Reply:
    """Submit a plan: a session of the caller's with one task, which begins as soon as an orchestrator adopts it.

    With an `Idempotency-Key` the request can be repeated when its response was lost: only one task is created.
    """
    return await _submit(service, caller, body, prepared, idempotency_key, traceparent)


@router.post(
    "/v1/asks",
    status_code=201,
    response_model=Submitted,
    responses={200: {"model": Submitted, "description": "It was submitted before, with this `Idempotency-Key`."}},
)
async def submit_ask(
    service: Service,
    caller: Runner,
    body: AskBody,
    idempotency_key: IdempotencyKey = "",
    traceparent: TraceParent = "",
) -> Reply:
    """Give an agent a goal: a session of the caller's with one task, whose result has the agent's `answer`.

    With an `Idempotency-Key` the request can be repeated when its response was lost: only one task is created.
    """
    return await _submit(service, caller, body, prepared_ask, idempotency_key, traceparent)


async def _submit(
    service: Service, caller: Caller, body: _Work, prepare: Prepare[_Work], key: str, traceparent: str
) -> Reply:
    """Write what ``prepare`` makes of a body, unless it has been written with this key before."""
    if body.allows:
        caller.require(Right.APPROVE)
    ids = ids_of(key, caller.principal, body) if key else new_ids()
    if key and await _stands(service.store, ids):
        return await _submitted(service, ids, status=200)
    # A plan of thousands of steps is no matter of milliseconds.
    ready = await asyncio.to_thread(prepare, body, caller.principal, ids, await service.catalogue(), service.client)
    return await _written(service, ready, traceparent, is_named=bool(key))


@router.post(
    "/v1/sessions/{session_id}/asks",
    status_code=201,
    response_model=Submitted,
    responses={200: {"model": Submitted, "description": "It was submitted before, with this `Idempotency-Key`."}},
)
async def submit_follow_up(
    service: Service,
    caller: Runner,
    session_id: SessionId,
    body: FollowUpBody,
    idempotency_key: IdempotencyKey = "",
    traceparent: TraceParent = "",
) -> Reply:
    """Give the agent of a session's last ask another goal: it knows the conversation so far.

    The last ask has to be completed. With an `Idempotency-Key` the request can be repeated when its response was lost.
    """
    store, catalogue = service.store, await service.catalogue()
    session = await store.sessions.session(session_id)
    await check_follow_up(caller, session, store.consent, catalogue, service.client.settings)
    task_id = ids_of(idempotency_key, caller.principal, body).task if idempotency_key else ""
    if task_id and await _stands(store, Ids(session_id, task_id)):
        if (await store.tasks.task(task_id)).title != title_of(body.goal):
            raise _reused()
        return await _submitted(service, Ids(session_id, task_id), status=200)
    ask = NextAsk(body.goal, body.agent, body.model, settings=read_settings(body.settings), task_id=task_id)
    ready = follow_up(ask, session, await _last_root(store, session_id), catalogue, service.client.clock)
    return await _written(service, ready, traceparent, is_named=bool(task_id))


async def _last_root(store: Store, session_id: str) -> Run:
    """Return the root run of the newest ask of a session. Raises: NotFoundError."""
    for task in await store.tasks.list_tasks(session_id=session_id, limit=TASKS_TOLD):
        if task.kind is TaskKind.ASK:
            return await store.runs.run(task.root_run_id)
    raise NotFoundError("session with an ask", session_id)


async def _written(service: Service, ready: Submission, traceparent: str, *, is_named: bool) -> Reply:
    """Write a submission. Raises: ConflictError; ProblemError when its key was used for another."""
    # The caller's span, and never the one that this process was started by.
    task = replace(ready.task, trace_parent=well_formed(traceparent))
    try:
        await service.client.submit(replace(ready, task=task))
    except ConflictError as error:
        if not is_named:
            raise
        raise _reused() from error  # by another request at the same moment
    return await _submitted(service, Ids(ready.session.id, ready.task.id), status=201)


@router.post("/v1/tasks/preview")
async def preview_plan(service: Service, _caller: Runner, body: PreviewBody) -> PreviewSchema:
    """Show what the steps of a plan will ask for, resolved and judged, and write nothing.

    The yes to a step as it is shown goes into `step_grants` of its submission.
    """
    preview = await asyncio.to_thread(previewed, body, await service.catalogue(), service.client.settings)
    return preview_document(preview)


@router.post("/v1/tasks/validate")
async def validate_plan(service: Service, _caller: Reader, body: PlanBody) -> PlanSchema:
    """Check a plan and write nothing. Every problem is listed with its place and a fix."""
    plan = await asyncio.to_thread(read_plan, body.plan, await service.catalogue(), body.source)
    inputs: list[Any] = [
        {"name": one.name, "type": one.type, "is_required": one.is_required, "default": one.default}
        for one in plan.inputs
    ]
    steps: list[Any] = [
        {"id": one.id, "kind": str(one.kind), "title": one.title, "depends_on": list(one.depends_on)}
        for one in plan.steps
    ]
    return PlanSchema(title=plan.title, inputs=inputs, steps=steps, mermaid=mermaid(plan))


@router.get("/v1/tasks")
async def list_tasks(
    service: Service, _caller: Reader, session: InSession = "", cursor: Cursor = "", limit: Limit = 50
) -> Page[TaskSchema]:
    """List tasks, newest first, with the number of steps in each status."""
    found = await service.store.tasks.list_tasks(session_id=session, before=cursor, limit=limit)
    return page_of([await _shape(service, task) for task in found], limit, found[-1].id if found else "")


@router.get("/v1/tasks/{task_id}")
async def show_task(
    service: Service, _caller: Reader, task_id: TaskId, cursor: StepCursor = "", limit: Limit = MAX_LIMIT
) -> TaskDetail:
    """Show a task: its inputs, its steps page by page with output or error, what waits for an answer."""
    store = service.store
    task = await store.tasks.task(task_id)
    tasks = (task, *await tasks_planned_by(store, task))
    steps, ids = await steps_of(store, tasks, after=cursor, limit=limit), {one.id for one in tasks}
    waiting = await store.consent.pending(task.session_id)
    return TaskDetail.of(
        task,
        step_counts=await counts_of(store, tasks),
        steps=[StepSchema.of(step) for step in in_plan_order(steps)],
        next=steps[-1].key if len(steps) == limit else None,
        approvals=[one.id for one in waiting if one.identity.task_id in ids],
    )


@router.get("/v1/tasks/{task_id}/result")
async def task_result(service: Service, _caller: Reader, task_id: TaskId, brief: Brief = False) -> TaskResult:
    """Show the result of a task: outputs, what was written, denied and unknown, as `soong tasks show --json` does."""
    view = await (brief_view if brief else snapshot_of)(service.store, task_id)
    outcome = await outcome_of(service.store, view, service.client.settings.runs)
    return TaskResult.of_outcome(outcome)


@router.get(
    "/v1/tasks/{task_id}/graph",
    response_class=Response,
    responses={200: {"content": {"text/plain": {}, "image/svg+xml": {}}, "description": "Mermaid text, or a picture."}},
)
async def task_graph(
    service: Service,
    _caller: Reader,
    task_id: TaskId,
    format: Annotated[Literal["mermaid", "svg"], Query(description="Mermaid text, or a picture as SVG.")] = "mermaid",
) -> Response:
    """Draw a task in its current state; of one with more than 1,000 steps the first, and how many are left out."""
    store = service.store
    task = await store.tasks.task(task_id)
    steps = await store.tasks.step_page(task_id, limit=MOST_DRAWN)
    statuses = {step.step_id: step.status for step in steps}
    left = sum((await store.tasks.counts(task_id)).by_status.values()) - len(steps)

    def draw() -> str:
        plan = planned_task(task, steps)
        if left > 0:
            plan = replace(plan, steps=(*plan.steps, StepSpec("…", title=f"{left} more steps, not drawn")))
        return mermaid(plan, statuses) if format == "mermaid" else svg(plan, statuses)

    media_type = "text/plain" if format == "mermaid" else "image/svg+xml"
    return Response(await asyncio.to_thread(draw), media_type=media_type)


@router.post("/v1/tasks/{task_id}/pause")
async def pause_task(service: Service, caller: Runner, task_id: TaskId, body: CommandBody = NO_REASON) -> TaskSchema:
    """Let nothing of a task start; what runs is handed back."""
    task, tasks = await steered(service, caller, task_id)
    await tasks.pause(task, reason=body.reason)
    return await _shape(service, await service.store.tasks.task(task_id))


@router.post("/v1/tasks/{task_id}/resume")
async def resume_task(service: Service, caller: Runner, task_id: TaskId, body: ResumeBody | None = None) -> TaskSchema:
    """Continue a paused task, or rerun the steps of an ended one that did not complete.

    To change what it or its session may use needs the right `approve` and one's own session.
    """
    asked = body or ResumeBody()
    if asked.raises_limits:
        caller.require(Right.APPROVE)
    task, tasks = await steered(service, caller, task_id)
    if asked.raises_limits:
        store = service.store
        check_own(caller, await store.sessions.session(task.session_id))
        of_task = NO_BUDGET if asked.limits is None else planned_limits(asked.limits)
        await raise_limits(store.budgets, task, of_session=parse_budget(asked.budget), of_task=of_task)
    await tasks.resume(task, reason=asked.reason or "resumed")
    return await _shape(service, await service.store.tasks.task(task_id))


@router.post("/v1/tasks/{task_id}/cancel")
async def cancel_task(service: Service, caller: Runner, task_id: TaskId, body: CommandBody = NO_REASON) -> TaskSchema:
    """Cancel a task: nothing of it starts any more, what runs is stopped."""
    task, tasks = await steered(service, caller, task_id)
    await tasks.cancel(task, reason=body.reason)
    return await _shape(service, await service.store.tasks.task(task_id))


@router.post("/v1/tasks/{task_id}/retry")
async def retry_task(service: Service, caller: Runner, task_id: TaskId, body: RetryBody | None = None) -> TaskSchema:
    """Run what did not complete again; with `from` also that step and all that came of it."""
    task, tasks = await steered(service, caller, task_id)
    asked = body or RetryBody()
    await tasks.retry(task, from_step=asked.start, reason=asked.reason)
    return await _shape(service, await service.store.tasks.task(task_id))


@router.post("/v1/tasks/{task_id}/dispatch")
async def dispatch_workers(service: Service, caller: Runner, task_id: TaskId, body: DispatchBody) -> TaskSchema:
    """Dispatch pull workers: runs that take a task's ready steps one by one, as those of `claim: pull` wait for.

    An agent, tools, a script or instructions of their own need the right `approve` and one's own session: whatever the
    session allows, it would allow them. What others dispatch is asked about, call by call.
    """
    if body.says_what_to_do:
        caller.require(Right.APPROVE)
    task, tasks = await steered(service, caller, task_id)
    if body.says_what_to_do:
        check_own(caller, await service.store.sessions.session(task.session_id))
    await tasks.dispatch_worker(task, **dict(body))
    return await _shape(service, await service.store.tasks.task(task_id))


async def _stands(store: Store, ids: Ids) -> bool:
    """Say whether a submission has been written already. Raises: ProblemError when another has, with the same key."""
    try:
        task = await store.tasks.task(ids.task)
    except NotFoundError:
        return False
    if task.session_id != ids.session:
        raise _reused()
    return True


def _reused() -> ProblemError:
    detail = "something else was submitted with this `Idempotency-Key`; take a new key for a new submission"
    return ProblemError(ProblemCode.IDEMPOTENCY_KEY_REUSED, detail)


async def _submitted(service: Service, ids: Ids, *, status: int) -> Reply:
    store = service.store
    session, task = await store.sessions.session(ids.session), await store.tasks.task(ids.task)
    shape = Submitted(session=SessionSchema.of(session), task=await _shape(service, task))
    return Reply(shape, status, {"Location": f"/v1/tasks/{ids.task}"})


async def steered(service: Service, caller: Caller, task_id: str) -> tuple[Task, TaskService]:
    """Return a task that the caller may steer. Raises: NotFoundError, ProblemError (not_yours)."""
    task = await service.store.tasks.task(task_id)
    check_steering(caller, await service.store.sessions.session(task.session_id))
    return task, service.tasks_of(caller)


async def _shape(service: Service, task: Task) -> TaskSchema:
    return TaskSchema.of(task, step_counts=(await service.store.tasks.counts(task.id)).by_status)
