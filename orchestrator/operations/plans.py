"""Plans and goals: checked, previewed, and submitted as tasks."""

import asyncio
from collections.abc import Mapping
from typing import Annotated, Any, Final

from fastapi import APIRouter, Header
from msgspec.structs import replace

from soong.orchestrator.client.client import Submission
from soong.orchestrator.operations.authentication import Caller
from soong.orchestrator.operations.context import Reader, Runner, Service
from soong.orchestrator.operations.documents import OperationReply, PlanSchema, PreviewSchema, Submitted
from soong.orchestrator.operations.events import TASKS_TOLD
from soong.orchestrator.operations.preparation import Prepare, Work, follow_up, prepared, prepared_ask, title_of
from soong.orchestrator.operations.problems import ProblemCode, ProblemError
from soong.orchestrator.operations.strict import SessionId, StrictRoute
from soong.orchestrator.operations.submissions import (
    AskBody,
    FollowUpBody,
    Ids,
    PlanBody,
    PreviewBody,
    SubmissionBody,
    check_follow_up,
    ids_of,
    new_ids,
    preview_document,
    previewed,
    read_plan,
)
from soong.orchestrator.operations.tasks import task_schema
from soong.orchestrator.schemas.run import SessionSchema
from soong.shared.core.errors import ConflictError, NotFoundError
from soong.shared.core.log import well_formed
from soong.shared.engine.sessions.session import Session
from soong.shared.engine.tasks.plan.checks import mermaid
from soong.shared.engine.tasks.spec import TaskKind
from soong.shared.permissions.access.token import Right
from soong.shared.storage.store import Store

router = APIRouter(route_class=StrictRoute, tags=["tasks"])

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


_SUBMITTING: Final[Mapping[str, Any]] = {
    "status_code": 201,
    "response_model": Submitted,
    "responses": {200: {"model": Submitted, "description": "It was submitted before, with this `Idempotency-Key`."}},
}


@router.post("/v1/tasks", **_SUBMITTING)
async def submit_task(
    service: Service,
    caller: Runner,
    body: SubmissionBody,
    idempotency_key: IdempotencyKey = "",
    traceparent: TraceParent = "",
) -> OperationReply:
    """Submit a plan: a session of the caller's with one task, which begins as soon as an orchestrator adopts it.

    With an `Idempotency-Key` the request can be repeated when its response was lost: only one task is created.
    """
    return await _submit(service, caller, body, prepared, idempotency_key, traceparent)


@router.post("/v1/asks", **_SUBMITTING)
async def submit_ask(
    service: Service, caller: Runner, body: AskBody, idempotency_key: IdempotencyKey = "", traceparent: TraceParent = ""
) -> OperationReply:
    """Give an agent a goal: a session of the caller's with one task, whose result has the agent's `answer`.

    With an `Idempotency-Key` the request can be repeated when its response was lost: only one task is created.
    """
    return await _submit(service, caller, body, prepared_ask, idempotency_key, traceparent)


async def _submit(
    service: Service, caller: Caller, body: Work, prepare: Prepare[Work], key: str, traceparent: str
) -> OperationReply:
    """Write what ``prepare`` makes of a body, unless it has been written with this key before."""
    if body.allows:
        caller.require(Right.APPROVE)
    ids = ids_of(key, caller.principal, body) if key else new_ids()
    if key and await _stands(service.store, ids):
        return await _submitted(service, await service.store.sessions.session(ids.session), ids.task, status=200)
    # A plan of thousands of steps is no matter of milliseconds.
    settings = service.settings_of(caller)
    ready = await asyncio.to_thread(prepare, body, caller.principal, ids, await service.catalogue(), settings)
    return await _written(service, ready, traceparent, is_named=bool(key))


@router.post("/v1/sessions/{session_id}/asks", **_SUBMITTING)
async def submit_follow_up(
    service: Service,
    caller: Runner,
    session_id: SessionId,
    body: FollowUpBody,
    idempotency_key: IdempotencyKey = "",
    traceparent: TraceParent = "",
) -> OperationReply:
    """Give the agent of a session's last ask another goal: it knows the conversation so far.

    The last ask has to be completed. With an `Idempotency-Key` the request can be repeated when its response was lost.
    """
    store, catalogue = service.store, await service.catalogue()
    session = await store.sessions.session(session_id)
    await check_follow_up(caller, session, store.consent, catalogue, service.settings_of(caller))
    task_id = ids_of(idempotency_key, caller.principal, body).task if idempotency_key else ""
    if task_id and await _stands(store, Ids(session_id, task_id)):
        if (await store.tasks.task(task_id)).title != title_of(body.goal):
            raise _reused()
        return await _submitted(service, session, task_id, status=200)
    if body.budget:
        caller.require(Right.APPROVE)
    newest = await store.tasks.list_tasks(session_id=session_id, limit=TASKS_TOLD)
    last = next((task for task in newest if task.kind is TaskKind.ASK), None)
    if last is None:
        raise NotFoundError("session with an ask", session_id)
    ready = follow_up(body, session, await store.runs.run(last.root_run_id), catalogue, task_id=task_id)
    return await _written(service, ready, traceparent, is_named=bool(task_id))


async def _written(service: Service, ready: Submission, traceparent: str, *, is_named: bool) -> OperationReply:
    """Write a submission. Raises: ConflictError; ProblemError when its key was used for another."""
    # The caller's span, and never the one that this process was started by.
    task = replace(ready.task, trace_parent=well_formed(traceparent))
    try:
        await service.client.submit(replace(ready, task=task))
    except ConflictError as error:
        if not is_named:
            raise
        raise _reused() from error  # by another request at the same moment
    return await _submitted(service, ready.session, task.id, status=201)


@router.post("/v1/tasks/preview")
async def preview_plan(service: Service, caller: Runner, body: PreviewBody) -> PreviewSchema:
    """Show what the steps of a plan will ask for, resolved and judged, and write nothing.

    The yes to a step as it is shown goes into `step_grants` of its submission.
    """
    preview = await asyncio.to_thread(previewed, body, await service.catalogue(), service.settings_of(caller))
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


async def _submitted(service: Service, session: Session, task_id: str, *, status: int) -> OperationReply:
    task = await task_schema(service, await service.store.tasks.task(task_id))
    shape = Submitted(session=SessionSchema.of(session), task=task)
    return OperationReply(shape, status, {"Location": f"/v1/tasks/{task_id}"})
