"""Tasks: their state, and control of them."""

import asyncio
from collections.abc import Sequence
from typing import Annotated, ClassVar, Final, Literal

from fastapi import APIRouter, Query
from msgspec.structs import replace
from pydantic import Field
from starlette.responses import Response

from soong.orchestrator.client.task_limits import raise_limits
from soong.orchestrator.operations.authentication import Caller
from soong.orchestrator.operations.context import Reader, Runner, Service, check_own, check_steering, made_since_us
from soong.orchestrator.operations.documents import ForkedPlan, Page, TaskDetail, page_of
from soong.orchestrator.operations.outcome import counts_of, in_plan_order, read_result, steps_of, tasks_planned_by
from soong.orchestrator.operations.strict import (
    MAX_LIMIT,
    Body,
    Cursor,
    InSession,
    Limit,
    MadeWithin,
    StepCursor,
    StrictRoute,
    TaskId,
    WithTag,
    WithTitle,
)
from soong.orchestrator.schemas.task import StepSchema, TaskResult, TaskSchema
from soong.shared.core.errors import ConflictError
from soong.shared.engine.runs.budgets import NO_BUDGET, parse_budget
from soong.shared.engine.runs.record import ListFilter
from soong.shared.engine.tasks.growth import MAX_PULL_WORKERS, planned_task
from soong.shared.engine.tasks.plan.checks import mermaid
from soong.shared.engine.tasks.plan.picture import svg
from soong.shared.engine.tasks.plan.reader import TaskLimitsDocument, planned_limits
from soong.shared.engine.tasks.planner import SAYS_WHAT_TO_DO
from soong.shared.engine.tasks.rerun import forked_plan
from soong.shared.engine.tasks.service import TaskService
from soong.shared.engine.tasks.spec import StepSpec, StepStatus, TaskStatus
from soong.shared.engine.tasks.step import Task
from soong.shared.permissions.access.token import Right

router = APIRouter(route_class=StrictRoute, tags=["tasks"])

Reason = Annotated[str, Field(max_length=2_000, description="The reason, for the record.")]


class CommandBody(Body):
    reason: Reason = ""


class ResumeBody(CommandBody):
    model: str = Field(default="", max_length=200, description="Model of the agent steps that run again.")
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


class PriorityBody(CommandBody):
    priority: int = Field(ge=-1_000, le=1_000, description="Higher first, among steps that are ready.")
    steps: list[str] = Field(default_factory=list, description="Only these steps; else all that have not ended.")


class DispatchBody(Body):
    """Runs that take a task's steps one by one, as `agent.dispatch_worker` starts them."""

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
MOST_DRAWN: Final = 1_000
"""Steps of a task in one picture."""


@router.get("/v1/tasks")
async def list_tasks(
    service: Service,
    _caller: Reader,
    session: InSession = "",
    status: Annotated[Sequence[TaskStatus], Query(description="Only in one of these.")] = (),
    title: WithTitle = "",
    tag: WithTag = "",
    since: MadeWithin = "",
    cursor: Cursor = "",
    limit: Limit = 50,
) -> Page[TaskSchema]:
    """List tasks, newest first, with the number of steps in each status."""
    only = ListFilter(tuple(status), title, made_since_us(service, since), tag)
    found = await service.store.tasks.list_tasks(session_id=session, only=only, before=cursor, limit=limit)
    return page_of([await task_schema(service, task) for task in found], limit, found[-1].id if found else "")


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
    return await read_result(service.store, task_id, service.client.settings.runs, brief=brief)


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
    left = sum((await store.tasks.counts(task_id)).values()) - len(steps)

    def draw() -> str:
        plan = planned_task(task, steps)
        if left > 0:
            plan = replace(plan, steps=(*plan.steps, StepSpec("…", title=f"{left} more steps, not drawn")))
        return mermaid(plan, statuses) if format == "mermaid" else svg(plan, statuses)

    media_type = "text/plain" if format == "mermaid" else "image/svg+xml"
    return Response(await asyncio.to_thread(draw), media_type=media_type)


@router.get("/v1/tasks/{task_id}/fork")
async def fork_task(
    service: Service,
    _caller: Reader,
    task_id: TaskId,
    start: Annotated[str, Query(alias="from", max_length=64, description="Run this step and all downstream of it.")],
) -> ForkedPlan:
    """Show a plan that repeats an ended task from a step on; other completed steps have their recorded results."""
    tasks = service.store.tasks
    task, steps = await tasks.task_with_steps(task_id)
    if not task.status.is_terminal:
        raise ConflictError(f"task {task.id} is {task.status}; fork it when it has ended")
    done = [step for step in steps if step.status is StepStatus.COMPLETED and not step.map_key]
    results = {step.key: await tasks.result(step.key) for step in done}
    return ForkedPlan(plan=forked_plan(task, steps, results, start))


@router.post("/v1/tasks/{task_id}/pause")
async def pause_task(service: Service, caller: Runner, task_id: TaskId, body: CommandBody = NO_REASON) -> TaskSchema:
    """Let nothing of a task start; what runs is handed back."""
    task, tasks = await steered(service, caller, task_id)
    await tasks.pause(task, reason=body.reason)
    return await task_schema(service, await service.store.tasks.task(task_id))


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
    await tasks.resume(task, reason=asked.reason or "resumed", model=asked.model)
    return await task_schema(service, await service.store.tasks.task(task_id))


@router.post("/v1/tasks/{task_id}/cancel")
async def cancel_task(service: Service, caller: Runner, task_id: TaskId, body: CommandBody = NO_REASON) -> TaskSchema:
    """Cancel a task: nothing of it starts any more, what runs is stopped."""
    task, tasks = await steered(service, caller, task_id)
    await tasks.cancel(task, reason=body.reason)
    return await task_schema(service, await service.store.tasks.task(task_id))


@router.post("/v1/tasks/{task_id}/priority")
async def set_priority(service: Service, caller: Runner, task_id: TaskId, body: PriorityBody) -> TaskSchema:
    """Change the priority of a task's steps that have not ended, or of some of them."""
    task, tasks = await steered(service, caller, task_id)
    await tasks.set_priority(task, body.priority, body.steps, reason=body.reason)
    return await task_schema(service, await service.store.tasks.task(task_id))


@router.post("/v1/tasks/{task_id}/retry")
async def retry_task(service: Service, caller: Runner, task_id: TaskId, body: RetryBody | None = None) -> TaskSchema:
    """Run what did not complete again; with `from` also that step and all that came of it."""
    task, tasks = await steered(service, caller, task_id)
    asked = body or RetryBody()
    await tasks.retry(task, from_step=asked.start, reason=asked.reason)
    return await task_schema(service, await service.store.tasks.task(task_id))


@router.post("/v1/tasks/{task_id}/dispatch")
async def dispatch_workers(service: Service, caller: Runner, task_id: TaskId, body: DispatchBody) -> TaskSchema:
    """Dispatch pull workers: runs that take a task's ready steps one by one, as those of `claim: pull` wait for.

    An agent, tools, a script or instructions of their own need the right `approve` and one's own session: whatever the
    session allows, it would allow them. Runs that others dispatch ask for each call.
    """
    if body.says_what_to_do:
        caller.require(Right.APPROVE)
    task, tasks = await steered(service, caller, task_id)
    if body.says_what_to_do:
        check_own(caller, await service.store.sessions.session(task.session_id))
    await tasks.dispatch_worker(task, **dict(body))
    return await task_schema(service, await service.store.tasks.task(task_id))


async def steered(service: Service, caller: Caller, task_id: str) -> tuple[Task, TaskService]:
    """Return a task that the caller may steer. Raises: NotFoundError, ProblemError (not_yours)."""
    task = await service.store.tasks.task(task_id)
    check_steering(caller, await service.store.sessions.session(task.session_id))
    return task, service.tasks_of(caller)


async def task_schema(service: Service, task: Task) -> TaskSchema:
    """Return a task with the number of its steps in each status."""
    return TaskSchema.of(task, step_counts=await service.store.tasks.counts(task.id))
