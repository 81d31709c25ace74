"""Tools that submit work, control a task and look at the service. A submission returns at once, with its task's id."""

from pathlib import Path
from typing import Annotated, Any, Final

from mcp.server.mcpserver.exceptions import ToolError
from mcp_types import CallToolResult
from pydantic import Field

from soong.orchestrator.mcp.api import (
    ApiCalls,
    SoongContext,
    api_of,
    counts_of,
    lines,
    path,
    picked,
    told,
    without_empty,
)
from soong.orchestrator.mcp.shapes import PlanCheck, SubmittedTask, TaskControl, WorkerLine, WorkerList
from soong.orchestrator.mcp.task_tools import TaskId
from soong.orchestrator.schemas.worker import UsageSum, UsageSums
from soong.shared.core.jsontext import Json

MAX_PLAN_BYTES: Final = 2 * 1024 * 1024
PLAN_SUFFIXES: Final = (".yaml", ".yml", ".json")

PlanText = Annotated[
    str | dict[str, Any] | None, Field(description="The plan itself: YAML or JSON text, or an object. Or `plan_path`.")
]
PlanPath = Annotated[
    str,
    Field(max_length=4_096, description="Path of a plan file (.yaml, .yml, .json) in the project, in place of `plan`."),
]
Project = Annotated[
    str,
    Field(max_length=4_096, description="Absolute path of the folder to work in [the folder the server started in]."),
]
Model = Annotated[
    str, Field(max_length=200, description="Model of agents that name none, as provider:name [the service's].")
]
Allow = Annotated[
    list[str] | None,
    Field(description="Rules `tool:scope` that allow calls without a question. Needs the right `approve`."),
]
Budget = Annotated[str, Field(max_length=100, description="What it may use in all: `2usd`, `200ktok` or both.")]
Approvals = Annotated[
    str,
    Field(
        pattern="^(inbox|deny)$",
        description="inbox: questions wait until a person answers. deny: what no rule allows is denied.",
    ),
]
SubmissionKey = Annotated[
    str, Field(pattern=r"^[\x21-\x7e]{0,255}$", description="A name for this submission: repeated, it is one task.")
]

Reason = Annotated[str, Field(max_length=2_000, description="The reason, for the record.")]


async def submit_plan(
    ctx: SoongContext,
    plan: PlanText = None,
    plan_path: PlanPath = "",
    inputs: Annotated[dict[str, Any] | None, Field(description="Values of the plan's inputs.")] = None,
    project: Project = "",
    model: Model = "",
    allow: Allow = None,
    approvals: Approvals = "inbox",
    budget: Budget = "",
    key: SubmissionKey = "",
) -> Annotated[CallToolResult, SubmittedTask]:
    """Run a plan (a DAG of steps for AI agents and functions) on Soong workers; returns the task's id at once.

    Follow it with wait_for_task. A minimal plan:
    {"title": "Two reviews", "steps": [{"id": "a", "instructions": "Review a.py"}, {"id": "b", "depends_on": ["a"],
    "instructions": "Summarize ${a.output}", "allowed_tools": ["code.write_file"]}]}. validate_plan checks one.
    """
    api = await api_of(ctx)
    body = without_empty(
        {
            "plan": await _plan(ctx, api, plan, plan_path, project),
            "inputs": inputs,
            "model": model,
            "allow": allow,
            "approval_mode": approvals,
            "budget": budget,
        }
    )
    return await _submitted(api, "/v1/tasks", body, project, key)


async def submit_goal(
    ctx: SoongContext,
    goal: Annotated[str, Field(min_length=1, max_length=100_000, description="What the agent is to achieve.")],
    project: Project = "",
    agent: Annotated[
        str, Field(max_length=200, description="Agent definition [orchestrator: it plans and delegates].")
    ] = "",
    model: Model = "",
    allow: Allow = None,
    approvals: Approvals = "inbox",
    budget: Budget = "",
    key: SubmissionKey = "",
) -> Annotated[CallToolResult, SubmittedTask]:
    """Give a goal to a Soong agent, which plans, starts workers in parallel and answers; returns the task's id at once.

    Follow it with wait_for_task; task_result has the answer. It needs a model.
    """
    api = await api_of(ctx)
    body = without_empty(
        {
            "goal": goal,
            "agent": agent,
            "model": model,
            "allow": allow,
            "approval_mode": approvals,
            "budget": budget,
        }
    )
    return await _submitted(api, "/v1/asks", body, project, key)


async def validate_plan(
    ctx: SoongContext, plan: PlanText = None, plan_path: PlanPath = "", project: Project = ""
) -> Annotated[CallToolResult, PlanCheck]:
    """Check a Soong plan and run nothing; lists every problem with its place and a fix."""
    api = await api_of(ctx)
    body: dict[str, Json] = {"plan": await _plan(ctx, api, plan, plan_path, project)}
    document = (await api.call("POST", "/v1/tasks/validate", body=body)).document
    shape = picked(PlanCheck, document)
    steps = shape.steps
    after = [
        f"- {one.id} ({one.kind}){' after ' + ', '.join(one.depends_on) if one.depends_on else ''}" for one in steps
    ]
    return told(
        lines(f"the plan {shape.title!r} is valid: {len(steps)} {'step' if len(steps) == 1 else 'steps'}", after), shape
    )


async def _submitted(api: ApiCalls, path: str, body: dict[str, Json], project: str, key: str) -> CallToolResult:
    headers = {"idempotency-key": key} if key else None
    submission = {**body, "project": _folder(api, project)}
    document = (await api.call("POST", path, body=submission, headers=headers)).document
    task, session = document["task"], document["session"]
    shape = picked(
        SubmittedTask,
        task,
        task=task["id"],
        session=session["id"],
        project=session["project"],
        approvals=session["approval_mode"],
    )
    text = f"task {shape.task} ({shape.title!r}) is {shape.status} in {shape.project}; wait for it: wait_for_task"
    return told(text, shape)


def _folder(api: ApiCalls, project: str) -> str:
    folder = project or api.project
    if not folder:
        raise ToolError("`project` is missing; pass the absolute path of the folder to work in, as the server sees it")
    return folder


async def _plan(ctx: SoongContext, api: ApiCalls, plan: Any, plan_path: str, project: str) -> Json:
    """Return the plan that was passed or named. Raises: ToolError."""
    if bool(plan) == bool(plan_path):
        raise ToolError("pass either `plan` (YAML or JSON text, or an object) or `plan_path`")
    if not plan_path:
        given: Json = plan
        return given
    if not ctx.request_context.lifespan_context.reads_files:
        raise ToolError("this server does not read plan files for its callers; pass the text of the plan as `plan`")
    return read_plan_file(Path(plan_path), Path(_folder(api, project)))


def read_plan_file(plan: Path, project: Path) -> str:
    """Return the text of a plan file inside the project. Raises: ToolError.

    Only files that are called plans, and only in the project: what is wrong with a plan quotes it.
    """
    wanted = f"expected a file in {str(project)!r} whose name ends in {', '.join(PLAN_SUFFIXES)}"
    try:
        root, file = project.resolve(strict=True), (project / plan).resolve(strict=True)
        if not file.is_relative_to(root) or file.suffix not in PLAN_SUFFIXES or not file.is_file():
            raise ToolError(f"the plan file {str(plan)!r} is not read; {wanted}")
        if file.stat().st_size > MAX_PLAN_BYTES:
            raise ToolError(f"the plan file {str(plan)!r} has more than {MAX_PLAN_BYTES:,} bytes")
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError, ValueError) as error:
        raise ToolError(f"the plan file {str(plan)!r} cannot be read ({type(error).__name__}); {wanted}") from None


async def pause_task(ctx: SoongContext, task: TaskId, reason: Reason = "") -> Annotated[CallToolResult, TaskControl]:
    """Pause a Soong task: nothing of it starts, what runs is handed back; resume_task continues it."""
    return await _commanded(ctx, task, "pause", {"reason": reason})


async def resume_task(ctx: SoongContext, task: TaskId, reason: Reason = "") -> Annotated[CallToolResult, TaskControl]:
    """Continue a paused Soong task, or run the steps of an ended one that did not complete again."""
    return await _commanded(ctx, task, "resume", {"reason": reason})


async def cancel_task(ctx: SoongContext, task: TaskId, reason: Reason = "") -> Annotated[CallToolResult, TaskControl]:
    """Cancel a Soong task: nothing of it starts any more, what runs is stopped."""
    return await _commanded(ctx, task, "cancel", {"reason": reason})


async def retry_task(
    ctx: SoongContext,
    task: TaskId,
    from_step: Annotated[str, Field(max_length=64, description="Also run this step and all that came of it.")] = "",
    reason: Reason = "",
) -> Annotated[CallToolResult, TaskControl]:
    """Run what did not complete of a Soong task again; with `from_step` also that step and everything downstream."""
    return await _commanded(ctx, task, "retry", {"from": from_step, "reason": reason})


async def _commanded(ctx: SoongContext, task: str, word: str, body: dict[str, str]) -> CallToolResult:
    document = (await (await api_of(ctx)).call("POST", path("tasks", task, word), body=without_empty(body))).document
    shape = picked(TaskControl, document)
    return told(f"task {shape.id} is {shape.status}; {counts_of(shape.step_counts)}", shape)


async def list_workers(ctx: SoongContext) -> Annotated[CallToolResult, WorkerList]:
    """List the Soong workers, the steps that each holds, and what waits for a free slot."""
    document = (await (await api_of(ctx)).call("GET", "/v1/workers")).document
    workers = [picked(WorkerLine, one, runs=[run["step"] for run in one["runs"]]) for one in document["workers"]]
    waiting = {pool["pool"]: pool["waiting"] for pool in document["pools"]}
    shape = WorkerList(workers=workers, waiting=waiting, parked=document["parked"])
    text = lines(
        [f"{one.name}: {one.state}, {one.used} of {one.slots} slots; {', '.join(one.runs)}" for one in workers]
        or "no worker is there; `soong worker` adds one",
        (f"{number} steps wait in {pool}" for pool, number in waiting.items() if number),
        f"{shape.parked} runs wait for a person without a slot" if shape.parked else "",
    )
    return told(text, shape)


async def show_usage(
    ctx: SoongContext,
    by: Annotated[
        str, Field(pattern="^(day|session|task|agent|model)$", description="day, session, task, agent or model.")
    ] = "day",
    days: Annotated[int, Field(ge=1, le=366, description="Runs made within so many days.")] = 7,
) -> Annotated[CallToolResult, UsageSums]:
    """Show what Soong agents have used: requests, tokens, tool calls, cost; by day, session, task, agent or model."""
    document = (await (await api_of(ctx)).call("GET", "/v1/usage", query={"by": by, "days": days})).document
    shape = UsageSums.model_validate(document)
    return told(lines([_usage_line(one) for one in shape.items] or "no agent has used a model in that time"), shape)


def _usage_line(one: UsageSum) -> str:
    return (
        f"{one.key}: {one.runs} runs, {one.requests} requests, {one.input_tokens} + {one.output_tokens} tokens, "
        f"{one.tool_calls} tool calls, {one.cost_usd} USD"
    )
