"""Tools that submit work, and follow, read and control it: each names its operation and has arguments for a model.

Clients give up on a call after a minute, progress or not; so no call blocks longer than 45 seconds, a submission
returns at once, and a wait is a long poll that is called again.
"""

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from mcp.server.mcpserver.exceptions import ToolError
from mcp_types import CallToolResult
from pydantic import Field

from soong.orchestrator.client.home_api import ApiReply
from soong.orchestrator.mcp.api import ApiCalls, SoongContext, api_of, called, shown, told
from soong.orchestrator.operations import plans, progress, runs, service, tasks
from soong.orchestrator.operations.documents import Page, PlanSchema, Submitted, TaskDetail
from soong.orchestrator.operations.runs import After
from soong.orchestrator.operations.strict import (
    Cursor,
    InSession,
    InTask,
    Limit,
    MadeWithin,
    StepCursor,
    WithTag,
    WithTitle,
)
from soong.orchestrator.operations.submissions import Goal
from soong.orchestrator.operations.tasks import Reason
from soong.orchestrator.schemas.base import AnyObject, Schema
from soong.orchestrator.schemas.run import ArtifactPage, RunSchema
from soong.orchestrator.schemas.task import StepErrorSchema, TaskProgress, TaskResult, TaskSchema
from soong.orchestrator.schemas.worker import UsageSums, WorkersSchema
from soong.shared.core import timing
from soong.shared.engine.runs.record import RunStatus
from soong.shared.engine.tasks.spec import TaskStatus

MAX_PLAN_BYTES: Final = 2 * 1024 * 1024
PLAN_SUFFIXES: Final = (".yaml", ".yml", ".json")
PAGE_CHARS: Final = 20_000
OUTPUT_CHARS: Final = 300
_OVER: Final = frozenset({"completed", "failed", "cancelled", "paused"})

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
TaskId = Annotated[str, Field(max_length=80, description="The task's id, `task_…`.")]


class WaitResult(TaskProgress):
    """How far a task is, and whether to wait again."""

    state: str = Field(description="Pass it as `after` to wait until the status or the questions change.")
    is_over: bool = Field(description="It has ended, or is paused: nothing more happens by itself.")
    hint: str = Field(description="What to do next.")


class StepText(Schema):
    """A page of what a step gave."""

    status: str
    run: str
    error: StepErrorSchema | None
    text: str = Field(description="Its output (of a failed step what it had so far): text as it is, else JSON.")
    next_offset: int | None = Field(description="`offset` of the next page; null: there is none.")
    total_chars: int


class RunPage(Page[AnyObject]):
    """A page of a run's log, as CloudEvents, or of the nodes of its transcript. Its `next` is the next `after`."""

    status: str = Field(description="Of the run.")


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
) -> Annotated[CallToolResult, Submitted]:
    """Run a plan (a DAG of steps for AI agents and functions) on Soong workers; returns the task's id at once.

    Follow it with wait_for_task. A minimal plan:
    {"title": "Two reviews", "steps": [{"id": "a", "instructions": "Review a.py"}, {"id": "b", "depends_on": ["a"],
    "instructions": "Summarize ${a.output}", "allowed_tools": ["code.write_file"]}]}. validate_plan checks one.
    """
    api = await api_of(ctx)
    body = {"plan": await _plan(ctx, api, plan, plan_path, project), "inputs": inputs or {}}
    body |= {"project": _folder(api, project), "model": model, "allow": allow or [], "budget": budget}
    return await _submitted(api, plans.submit_task, {**body, "approval_mode": approvals}, key)


async def submit_goal(
    ctx: SoongContext,
    goal: Goal,
    project: Project = "",
    agent: Annotated[
        str, Field(max_length=200, description="Agent definition [orchestrator: it plans and delegates].")
    ] = "",
    model: Model = "",
    allow: Allow = None,
    approvals: Approvals = "inbox",
    budget: Budget = "",
    key: SubmissionKey = "",
) -> Annotated[CallToolResult, Submitted]:
    """Give a goal to a Soong agent, which plans, starts workers in parallel and answers; returns the task's id at once.

    Follow it with wait_for_task; task_result has the answer. It needs a model.
    """
    api = await api_of(ctx)
    body = {"goal": goal, "project": _folder(api, project), "model": model, "allow": allow or [], "budget": budget}
    body |= {"agent": agent} if agent else {}
    return await _submitted(api, plans.submit_ask, {**body, "approval_mode": approvals}, key)


async def _submitted(api: ApiCalls, operation: Any, body: Any, key: str) -> CallToolResult:
    document = (await api.operate(operation, body=body, idempotency_key=key)).document
    task, folder = document["task"], document["session"]["project"]
    text = f"task {task['id']} ({task['title']!r}) is {task['status']} in {folder}; wait for it: wait_for_task"
    return told(text, document)


async def validate_plan(
    ctx: SoongContext, plan: PlanText = None, plan_path: PlanPath = "", project: Project = ""
) -> Annotated[CallToolResult, PlanSchema]:
    """Check a Soong plan and run nothing; lists every problem with its place and a fix."""
    body = {"plan": await _plan(ctx, await api_of(ctx), plan, plan_path, project)}
    return shown(await called(ctx, plans.validate_plan, body=body), "the plan is valid")


def _folder(api: ApiCalls, project: str) -> str:
    folder = project or api.project
    if not folder:
        raise ToolError("`project` is missing; pass the absolute path of the folder to work in, as the server sees it")
    return folder


async def _plan(ctx: SoongContext, api: ApiCalls, plan: Any, plan_path: str, project: str) -> Any:
    """Return the plan that was passed or named. Raises: ToolError."""
    if bool(plan) == bool(plan_path):
        raise ToolError("pass either `plan` (YAML or JSON text, or an object) or `plan_path`")
    if plan_path and not ctx.request_context.lifespan_context.reads_files:
        raise ToolError("this server does not read plan files for its callers; pass the text of the plan as `plan`")
    return read_plan_file(Path(plan_path), Path(_folder(api, project))) if plan_path else plan


def read_plan_file(plan: Path, project: Path) -> str:
    """Return the text of a file of the project that is named as a plan: errors quote it. Raises: ToolError."""
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


async def wait_for_task(
    ctx: SoongContext,
    task: TaskId,
    seconds: Annotated[
        int, Field(ge=0, le=timing.TOOL_WAIT_S, description="At most so many seconds; call it again to continue.")
    ] = 30,
    after: Annotated[
        str, Field(max_length=80, description="`state` of the last call: return only when it has changed.")
    ] = "",
) -> Annotated[CallToolResult, WaitResult]:
    """Wait up to 45 seconds for a Soong task to end, pause or need a person's answer; call again until it is over."""
    api = await api_of(ctx)
    reply = await _progress(ctx, api, task, seconds, after)
    document, state = reply.document, reply.headers["etag"].strip('"')
    is_over = document["status"] in _OVER
    if document["approvals"] and "approve" in api.rights:
        hint = "show the question to the user (list_approvals), then answer_approval with what they decide"
    elif document["approvals"]:
        hint = "a person has to answer: `soong approvals watch` in a terminal; then wait again, with `after`"
    elif document["status"] == "paused":
        hint = "resume_task continues it"
    else:
        hint = "task_result shows the result" if is_over else "call wait_for_task again"
    return shown({**document, "state": state, "is_over": is_over, "hint": hint})


async def _progress(ctx: SoongContext, api: ApiCalls, task: str, seconds: int, after: str) -> ApiReply:
    """Poll until there is news; a client that asked for progress receives it every few seconds."""
    seen = f'"{after}"' if after else ""
    reports = (ctx.request_context.meta or {}).get("progress_token") is not None
    now_s = asyncio.get_running_loop().time
    deadline_s = now_s() + seconds
    while True:
        left_s = max(0, round(deadline_s - now_s()))
        wait_s = min(left_s, timing.RENEW_EVERY_S) if reports else left_s
        reply = await api.operate(progress.task_progress, task_id=task, wait=wait_s, if_none_match=seen)
        if not (is_new := reply.status != 304):
            reply = await api.operate(progress.task_progress, task_id=task)
        document = reply.document
        if wait_s == left_s or (is_new and (after or document["status"] in _OVER or document["approvals"])):
            return reply
        done, total = document["step_counts"].get("completed", 0), sum(document["step_counts"].values())
        await ctx.report_progress(done, total, f"{done} of {total} steps completed")


async def list_tasks(
    ctx: SoongContext,
    limit: Limit = 20,
    cursor: Cursor = "",
    session: InSession = "",
    status: Annotated[Sequence[TaskStatus], Field(description="Only in one of these.")] = (),
    title: WithTitle = "",
    tag: WithTag = "",
    since: MadeWithin = "",
) -> Annotated[CallToolResult, Page[TaskSchema]]:
    """List Soong tasks, newest first, with their status and how many steps are done."""
    only = {"session": session, "status": status, "title": title, "tag": tag, "since": since}
    return shown(await called(ctx, tasks.list_tasks, limit=limit, cursor=cursor, **only))


async def show_task(
    ctx: SoongContext,
    task: TaskId,
    cursor: StepCursor = "",
    limit: Annotated[int, Field(ge=1, le=200, description="At most so many steps.")] = 50,
) -> Annotated[CallToolResult, TaskDetail]:
    """Show a Soong task: its status and each step with its run, error and the beginning of its output."""
    return shown(await called(ctx, tasks.show_task, task_id=task, cursor=cursor, limit=limit), most=OUTPUT_CHARS)


async def task_result(ctx: SoongContext, task: TaskId) -> Annotated[CallToolResult, TaskResult]:
    """Show the result of a Soong task: its answer, the outputs of its steps, files written, calls denied, failures."""
    document = await called(ctx, tasks.task_result, task_id=task)
    answer = document["answer"]
    steps = sorted(document["steps"], key=lambda step: step["status"] != "failed")  # none of these is left out
    return shown({**document, "answer": answer if answer is None else _text_of(answer), "steps": steps})


def _text_of(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, indent=1)


async def read_step(
    ctx: SoongContext,
    task: TaskId,
    step: Annotated[str, Field(max_length=300, description="The step's id, as show_task lists it.")],
    offset: Annotated[int, Field(ge=0, description="Begin at this character.")] = 0,
    limit: Annotated[int, Field(ge=1, le=PAGE_CHARS, description="At most so many characters.")] = PAGE_CHARS,
) -> Annotated[CallToolResult, StepText]:
    """Read the full output of one step of a Soong task, page by page; of a failed step its error."""
    steps = (await called(ctx, tasks.task_result, task_id=task))["steps"]
    found = next((one for one in steps if one["id"] == step), None)
    if found is None:
        known = ", ".join(one["id"] for one in steps[:20])
        raise ToolError(f"task {task} has no step {step[:100]!r}; its first steps are {known}")
    value = found["output"] if found["output"] is not None else found["partial"]
    whole = "" if value is None else _text_of(value)
    end = min(offset + limit, len(whole))
    page = {name: found[name] for name in ("status", "run", "error")} | {"text": whole[offset:end]}
    document = page | {"next_offset": end if end < len(whole) else None, "total_chars": len(whole)}
    error = f"error: {found['error']['type']}: {found['error']['message']}\n" if found["error"] else ""
    more = f"\nmore: offset={end} of {len(whole)}" if end < len(whole) else ""
    return told(f"step {step}: {found['status']}\n{error}{page['text']}{more}", document)


async def list_runs(
    ctx: SoongContext,
    task: InTask = "",
    session: InSession = "",
    limit: Limit = 20,
    cursor: Cursor = "",
    status: Annotated[Sequence[RunStatus], Field(description="Only in one of these.")] = (),
    title: WithTitle = "",
    tag: WithTag = "",
    since: MadeWithin = "",
) -> Annotated[CallToolResult, Page[RunSchema]]:
    """List the runs of Soong agents, newest first: who ran which step, with which model, and how it ended."""
    only = {"task": task, "session": session, "status": status, "title": title, "tag": tag, "since": since}
    return shown(await called(ctx, runs.list_runs, limit=limit, cursor=cursor, **only))


async def read_run(
    ctx: SoongContext,
    run: Annotated[str, Field(max_length=80, description="The run's id, `run_…`.")],
    view: Annotated[
        Literal["transcript", "events"],
        Field(description="transcript: what the model read and wrote. events: every tool call, decision and change."),
    ] = "transcript",
    after: After = 0,
    limit: Annotated[int, Field(ge=1, le=50, description="At most so many entries.")] = 20,
) -> Annotated[CallToolResult, RunPage]:
    """Read a Soong run page by page: the transcript of its model, or its log of tool calls, permissions and changes."""
    status = (await called(ctx, runs.show_run, run_id=run))["status"]
    operation = runs.list_nodes if view == "transcript" else runs.list_events
    page = await called(ctx, operation, run_id=run, after=after, limit=limit)
    return shown({"status": status, **page})


async def read_artifact(
    ctx: SoongContext,
    digest: Annotated[str, Field(pattern="^[0-9a-f]{64}$", description="SHA-256, as results and events name it.")],
    offset: Annotated[int, Field(ge=0, le=2**53, description="Begin at this byte.")] = 0,
    limit: Annotated[int, Field(ge=1, le=20_000, description="At most so many bytes.")] = 20_000,
) -> Annotated[CallToolResult, ArtifactPage]:
    """Read an artifact of a Soong run by its digest, page by page: long tool output, or the copy of a written file."""
    page = await called(ctx, runs.read_artifact, digest=digest, offset=offset, limit=limit)
    if page["text"] is None and not page["base64"]:
        raise ToolError(f"the artifact has {page['size_bytes']} bytes; there is nothing from {offset} on")
    more = f"\nmore: offset={page['next_offset']} of {page['size_bytes']} bytes" if page["next_offset"] else ""
    return told((f"(not text; base64) {page['base64']}" if page["text"] is None else page["text"]) + more, page)


async def pause_task(ctx: SoongContext, task: TaskId, reason: Reason = "") -> Annotated[CallToolResult, TaskSchema]:
    """Pause a Soong task: nothing of it starts, what runs is handed back; resume_task continues it."""
    return shown(await called(ctx, tasks.pause_task, task_id=task, body={"reason": reason}))


async def resume_task(ctx: SoongContext, task: TaskId, reason: Reason = "") -> Annotated[CallToolResult, TaskSchema]:
    """Continue a paused Soong task, or run the steps of an ended one that did not complete again."""
    return shown(await called(ctx, tasks.resume_task, task_id=task, body={"reason": reason}))


async def cancel_task(ctx: SoongContext, task: TaskId, reason: Reason = "") -> Annotated[CallToolResult, TaskSchema]:
    """Cancel a Soong task: nothing of it starts any more, what runs is stopped."""
    return shown(await called(ctx, tasks.cancel_task, task_id=task, body={"reason": reason}))


async def set_priority(
    ctx: SoongContext,
    task: TaskId,
    priority: Annotated[int, Field(ge=-1_000, le=1_000, description="Higher first, among steps that are ready.")],
    steps: Annotated[Sequence[str], Field(description="Only these steps; else all that have not ended.")] = (),
) -> Annotated[CallToolResult, TaskSchema]:
    """Change the priority of the steps of a Soong task that have not ended."""
    return shown(await called(ctx, tasks.set_priority, task_id=task, body={"priority": priority, "steps": [*steps]}))


async def retry_task(
    ctx: SoongContext,
    task: TaskId,
    from_step: Annotated[str, Field(max_length=64, description="Also run this step and all that came of it.")] = "",
    reason: Reason = "",
) -> Annotated[CallToolResult, TaskSchema]:
    """Run what did not complete of a Soong task again; with `from_step` also that step and everything downstream."""
    return shown(await called(ctx, tasks.retry_task, task_id=task, body={"from": from_step, "reason": reason}))


async def list_workers(ctx: SoongContext) -> Annotated[CallToolResult, WorkersSchema]:
    """List the Soong workers, the steps that each holds, and what waits for a free slot."""
    document = await called(ctx, service.workers)
    return shown(document, "" if document["workers"] else "no worker is there; `soong worker` adds one")


async def show_usage(
    ctx: SoongContext,
    by: Annotated[
        str, Field(pattern="^(day|session|task|agent|model)$", description="day, session, task, agent or model.")
    ] = "day",
    days: Annotated[int, Field(ge=1, le=366, description="Runs made within so many days.")] = 7,
) -> Annotated[CallToolResult, UsageSums]:
    """Show what Soong agents have used: requests, tokens, tool calls, cost; by day, session, task, agent or model."""
    return shown(await called(ctx, service.usage, by=by, days=days))
