"""Tasks: submitting them, how they stand, and what may be asked of them."""

import asyncio
from pathlib import Path
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, Query
from pydantic import Field, JsonValue
from starlette.requests import Request
from starlette.responses import Response

from orchestrator.catalogue import Catalogue
from orchestrator.client import view_of
from orchestrator.http.authentication import Caller
from orchestrator.http.context import Api, Needs, api_of, check_steering
from orchestrator.http.parameters import Cursor, InSession, Limit, TaskId
from orchestrator.http.problems import Problem, ProblemError
from orchestrator.http.shapes import (
    Page,
    PlanShape,
    SessionShape,
    StepShape,
    Submitted,
    TaskDetail,
    TaskResult,
    TaskShape,
    page_of,
    respond,
)
from orchestrator.http.strict import Body, StrictRoute
from orchestrator.outcome import outcome_of
from orchestrator.submission import Submission, submission
from shared.access.token import Right
from shared.sessions.session import AnswerMode
from shared.tasks.graph import mermaid
from shared.tasks.growth import planned_task
from shared.tasks.picture import svg
from shared.tasks.plan import Plan
from shared.tasks.reading import parse_plan, plan_from_json
from shared.tasks.service import TaskService
from shared.tasks.step import Task

router = APIRouter(route_class=StrictRoute, tags=["tasks"])

READER = Depends(Needs(Right.READ))
RUNNER = Depends(Needs(Right.RUN))

PlanSource = Annotated[
    dict[str, JsonValue] | str, Field(description="The plan: an object, or the text of a plan file (YAML or JSON).")
]
Reason = Annotated[str, Field(max_length=2_000, description="Why, for whoever reads it later.")]


class PlanBody(Body):
    plan: PlanSource


class SubmissionBody(PlanBody):
    """A plan and what it is to work with."""

    inputs: dict[str, JsonValue] = Field(default_factory=dict)
    project: str = Field(max_length=4_096, description="Absolute path of the folder to work in, as the server sees it.")
    answer_mode: Literal["inbox", "attached", "none"] = Field(
        default="inbox",
        description="Who answers questions: anyone with the right, at any time; the submitter alone; nobody.",
    )
    model: str = Field(default="", max_length=200, description="The model of steps that name none.")
    allow: list[str] = Field(
        default_factory=list,
        max_length=100,
        description="Rules `tool:scope` that allow without a question; needs the right `approve`.",
    )


class Asked(Body):
    reason: Reason = ""


class RetryAsked(Asked):
    start: str = Field(
        default="", alias="from", max_length=64, description="Run this step and all that came of it again, too."
    )


NO_REASON = Asked()


@router.post("/v1/tasks", status_code=201, response_model=Submitted)
async def submit_task(request: Request, body: SubmissionBody, caller: Caller = RUNNER) -> Response:
    """Submit a plan: a session of the caller's with one task, which begins as soon as an orchestrator adopts it."""
    api = api_of(request)
    if body.allow:
        caller.require(Right.APPROVE)
    prepared = await _prepared(api, body, caller)
    await api.client.submit(prepared.session, prepared.task)
    shape = Submitted(
        session=SessionShape.of(prepared.session),
        task=await _shape(api, await api.client.store.task(prepared.task.id)),
    )
    return respond(shape, status=201, headers={"Location": f"/v1/tasks/{prepared.task.id}"})


@router.post("/v1/tasks/validate", response_model=PlanShape, dependencies=[READER])
async def validate_plan(request: Request, body: PlanBody) -> Response:
    """Check a plan and write nothing. Every offence is named with its place and what to do."""
    plan = await asyncio.to_thread(_read, body.plan, await api_of(request).catalogue())
    inputs: list[Any] = [
        {"name": one.name, "type": one.type, "is_required": one.is_required, "default": one.default}
        for one in plan.inputs
    ]
    steps: list[Any] = [
        {"id": one.id, "kind": str(one.kind), "title": one.title, "depends_on": list(one.depends_on)}
        for one in plan.steps
    ]
    return respond(PlanShape(title=plan.title, inputs=inputs, steps=steps, mermaid=mermaid(plan)))


@router.get("/v1/tasks", response_model=Page[TaskShape], dependencies=[READER])
async def list_tasks(request: Request, session: InSession = "", cursor: Cursor = "", limit: Limit = 50) -> Response:
    """List tasks, newest first, with how many steps stand in which status."""
    api = api_of(request)
    found = await api.client.store.tasks(session_id=session, before=cursor, limit=limit)
    return respond(page_of([await _shape(api, task) for task in found], limit, found[-1].id if found else ""))


@router.get("/v1/tasks/{task_id}", response_model=TaskDetail, dependencies=[READER])
async def show_task(request: Request, task_id: TaskId) -> Response:
    """Show a task: its inputs, every step with its output or error, what waits for an answer."""
    api = api_of(request)
    view = await view_of(api.client.store, task_id)
    detail = TaskDetail(
        **TaskShape.of(view.task, view.counts).model_dump(),
        root_run=view.task.root_run_id,
        inputs=dict(view.task.inputs),
        step_list=[StepShape.of(step) for step in view.steps],
        approvals=[question.id for question in view.questions],
    )
    return respond(detail)


@router.get("/v1/tasks/{task_id}/result", response_model=TaskResult, dependencies=[READER])
async def task_result(request: Request, task_id: TaskId) -> Response:
    """Say what a task came to: outputs, what was written, denied and unknown; as `soong tasks show --json` does."""
    client = api_of(request).client
    outcome = await outcome_of(client.store, await view_of(client.store, task_id), client.settings.home)
    return respond(outcome.as_json())


@router.get(
    "/v1/tasks/{task_id}/graph",
    dependencies=[READER],
    response_class=Response,
    responses={200: {"content": {"text/plain": {}, "image/svg+xml": {}}, "description": "Mermaid text, or a picture."}},
)
async def task_graph(
    request: Request,
    task_id: TaskId,
    format: Annotated[Literal["mermaid", "svg"], Query(description="Mermaid text, or a picture as SVG.")] = "mermaid",
) -> Response:
    """Draw a task as it stands."""
    store = api_of(request).client.store
    task, steps = await store.task(task_id), await store.steps(task_id)
    statuses = {step.step_id: step.status for step in steps}

    def draw() -> str:
        plan = planned_task(task, steps)
        return mermaid(plan, statuses) if format == "mermaid" else svg(plan, statuses)

    media_type = "text/plain" if format == "mermaid" else "image/svg+xml"
    return Response(await asyncio.to_thread(draw), media_type=media_type)


@router.post("/v1/tasks/{task_id}/pause", response_model=TaskShape)
async def pause_task(request: Request, task_id: TaskId, body: Asked = NO_REASON, caller: Caller = RUNNER) -> Response:
    """Let nothing of a task start; what runs is handed back."""
    api, task, tasks = await _steered(request, task_id, caller)
    await tasks.pause(task, reason=body.reason)
    return respond(await _shape(api, await api.client.store.task(task_id)))


@router.post("/v1/tasks/{task_id}/resume", response_model=TaskShape)
async def resume_task(request: Request, task_id: TaskId, body: Asked = NO_REASON, caller: Caller = RUNNER) -> Response:
    """Let a paused task go on, or run what did not complete of an ended one again."""
    api, task, tasks = await _steered(request, task_id, caller)
    await tasks.resume(task, reason=body.reason or "resumed")
    return respond(await _shape(api, await api.client.store.task(task_id)))


@router.post("/v1/tasks/{task_id}/cancel", response_model=TaskShape)
async def cancel_task(request: Request, task_id: TaskId, body: Asked = NO_REASON, caller: Caller = RUNNER) -> Response:
    """Cancel a task: nothing of it starts any more, what runs is stopped."""
    api, task, tasks = await _steered(request, task_id, caller)
    await tasks.cancel(task, reason=body.reason)
    return respond(await _shape(api, await api.client.store.task(task_id)))


@router.post("/v1/tasks/{task_id}/retry", response_model=TaskShape)
async def retry_task(
    request: Request, task_id: TaskId, body: RetryAsked | None = None, caller: Caller = RUNNER
) -> Response:
    """Run what did not complete again; with `from` also that step and all that came of it."""
    api, task, tasks = await _steered(request, task_id, caller)
    asked = body or RetryAsked()
    await tasks.retry(task, from_step=asked.start, reason=asked.reason)
    return respond(await _shape(api, await api.client.store.task(task_id)))


async def _steered(request: Request, task_id: str, caller: Caller) -> tuple[Api, Task, TaskService]:
    """Return a task that the caller may steer. Raises: NotFoundError, ProblemError (not_yours)."""
    api = api_of(request)
    task = await api.client.store.task(task_id)
    check_steering(caller, await api.client.store.session(task.session_id))
    return api, task, api.tasks_of(caller)


async def _prepared(api: Api, body: SubmissionBody, caller: Caller) -> Submission:
    catalogue, settings = await api.catalogue(), api.client.settings
    project = _project(body.project, settings.http_projects)

    def prepare() -> Submission:
        return submission(
            _read(body.plan, catalogue),
            body.inputs,
            project=project,
            answer_mode=AnswerMode(body.answer_mode),
            model=body.model or settings.model,
            allow=body.allow,
            catalogue=catalogue,
            clock=api.client.clock,
            principal=caller.principal,
            cwd=project,
        )

    return await asyncio.to_thread(prepare)  # a plan of thousands of steps is no matter of milliseconds


def _project(text: str, roots: tuple[str, ...]) -> Path:
    """Return the folder of a submission. Raises: ProblemError."""
    if not text.startswith("/") or "\0" in text:
        raise ProblemError(
            Problem.INVALID_INPUT, "`project` is no absolute path; name the folder as the server sees it"
        )
    folder = Path(text).resolve()
    allowed = [Path(root).expanduser().resolve() for root in roots]
    if allowed and not any(folder.is_relative_to(root) for root in allowed):
        raise ProblemError(Problem.FORBIDDEN, "`project` lies in none of the folders of SOONG_HTTP_PROJECTS")
    if not folder.is_dir():
        raise ProblemError(Problem.INVALID_INPUT, "`project` is no folder that this server sees")
    return folder


def _read(source: dict[str, JsonValue] | str, catalogue: Catalogue) -> Plan:
    known = catalogue.known()
    return parse_plan(source, "plan", known) if isinstance(source, str) else plan_from_json(source, "plan", known)


async def _shape(api: Api, task: Task) -> TaskShape:
    return TaskShape.of(task, (await api.client.store.counts(task.id)).by_status)
