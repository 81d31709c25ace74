"""Tools that read tasks, runs and artifacts: wait, list, show, page by page. No call blocks longer than 45 seconds.

Clients give up on a call after a minute, progress or not; so a wait is a long poll that is called again.
"""

import asyncio
import json
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final, Literal

from mcp.server.mcpserver.exceptions import ToolError
from mcp_types import CallToolResult
from pydantic import Field

from soong.orchestrator.mcp.api import (
    MAX_TEXT_CHARS,
    ApiCalls,
    ApiReply,
    SoongContext,
    api_of,
    counts_of,
    cut,
    lines,
    path,
    picked,
    preview,
    told,
)
from soong.orchestrator.mcp.shapes import (
    DeniedCall,
    RunEntry,
    RunLine,
    RunList,
    RunPage,
    StepLine,
    StepText,
    TaskLine,
    TaskList,
    TaskState,
    TaskSummary,
    WaitResult,
)
from soong.orchestrator.schemas.run import ArtifactPage
from soong.orchestrator.schemas.task import FailedStep
from soong.shared.core import timing
from soong.shared.core.jsontext import Json

MAX_OUTPUTS: Final = 50
PAGE_CHARS: Final = 20_000

TaskId = Annotated[str, Field(max_length=80, description="The task's id, `task_…`.")]
_OVER: Final = frozenset({"completed", "failed", "cancelled", "paused"})

MAX_FIELD_CHARS: Final = 2_000
MAX_DEPTH: Final = 6
MAX_ENTRIES: Final = 50
MAX_PAGE_CHARS: Final = MAX_TEXT_CHARS * 3 // 4
RunId = Annotated[str, Field(max_length=80, description="The run's id, `run_…`.")]


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
    document = reply.document
    shape = picked(
        WaitResult,
        document,
        task=document["id"],
        state=reply.tag.strip('"'),
        is_over=document["status"] in _OVER,
        hint=_next(document, api),
    )
    return told(_wait_text(shape), shape)


async def _progress(ctx: SoongContext, api: ApiCalls, task: str, seconds: int, after: str) -> ApiReply:
    """Poll until there is news; a client that asked for progress receives it every few seconds."""
    where = path("tasks", task, "progress")
    headers = {"if-none-match": f'"{after}"'} if after else None
    loop = asyncio.get_running_loop()
    deadline_s = loop.time() + seconds
    while True:
        left_s = max(0, round(deadline_s - loop.time()))
        wait_s = min(left_s, timing.RENEW_EVERY_S) if _wants_progress(ctx) else left_s
        reply = await api.call("GET", where, query={"wait": wait_s}, headers=headers)
        is_told = not reply.is_unchanged and (
            bool(after) or (reply.document["status"] in _OVER or bool(reply.document["approvals"]))
        )
        if is_told or wait_s == left_s:
            return await api.call("GET", where) if reply.is_unchanged else reply
        await _report(ctx, reply.document or (await api.call("GET", where)).document)


def _wants_progress(ctx: SoongContext) -> bool:
    meta = ctx.request_context.meta
    return bool(meta and meta.get("progress_token") is not None)


async def _report(ctx: SoongContext, document: Mapping[str, Any]) -> None:
    counts = document["step_counts"]
    await ctx.report_progress(counts.get("completed", 0), sum(counts.values()), counts_of(counts))


def _next(document: Mapping[str, Any], api: ApiCalls) -> str:
    if document["approvals"]:
        if "approve" in api.rights:
            return "show the question to the user (list_approvals), then answer_approval with what they decide"
        return "a person has to answer: `soong approvals watch` in a terminal; then wait again, with `after`"
    if document["status"] == "paused":
        return "resume_task continues it"
    if document["status"] in _OVER:
        return "task_result shows the result"
    return "call wait_for_task again"


def _wait_text(shape: WaitResult) -> str:
    running = ", ".join(f"{one.id}{' (' + one.progress + ')' if one.progress else ''}" for one in shape.running)
    return lines(
        f"task {shape.task} ({shape.title!r}): {shape.status}{', ' + shape.reason if shape.reason else ''}; "
        f"{counts_of(shape.step_counts)}",
        f"running: {running}" if running else "",
        (_failed_line(one) for one in shape.failed),
        f"waiting for a person's answer: {', '.join(shape.approvals)}" if shape.approvals else "",
        f"next: {shape.hint}",
        f"state: {shape.state}",
    )


def _failed_line(one: FailedStep) -> str:
    return f"failed: {one.id}: {one.error.type}: {cut(one.error.message, 500)}" if one.error else f"failed: {one.id}"


async def list_tasks(
    ctx: SoongContext,
    limit: Annotated[int, Field(ge=1, le=100, description="At most so many.")] = 20,
    cursor: Annotated[str, Field(max_length=80, description="`next` of the page before.")] = "",
    session: Annotated[str, Field(max_length=80, description="Only of this session.")] = "",
) -> Annotated[CallToolResult, TaskList]:
    """List Soong tasks, newest first, with their status and how many steps are done."""
    query: dict[str, str | int] = {"limit": limit, "cursor": cursor, "session": session}
    document = (await (await api_of(ctx)).call("GET", "/v1/tasks", query=query)).document
    items = [picked(TaskLine, one) for one in document["items"]]
    shape = TaskList(items=items, next=document["next"])
    each = [f"{one.id} {one.status:<9} {one.title!r}: {counts_of(one.step_counts)}" for one in items]
    return told(lines(each or "there are no tasks", f"next page: cursor={shape.next}" if shape.next else ""), shape)


async def show_task(
    ctx: SoongContext,
    task: TaskId,
    cursor: Annotated[str, Field(max_length=300, description="`next` of the page before.")] = "",
    limit: Annotated[int, Field(ge=1, le=200, description="At most so many steps.")] = 50,
) -> Annotated[CallToolResult, TaskState]:
    """Show a Soong task: its status and each step with its run, error and the beginning of its output."""
    query: dict[str, str | int] = {"cursor": cursor, "limit": limit}
    document = (await (await api_of(ctx)).call("GET", path("tasks", task), query=query)).document
    steps = [_step_line(step) for step in document["steps"]]
    shape = picked(TaskState, document, steps=steps)
    text = lines(
        f"task {shape.id} ({shape.title!r}): {shape.status}{', ' + shape.reason if shape.reason else ''}; "
        f"{counts_of(shape.step_counts)}",
        (_step_text(step) for step in steps),
        f"more steps: cursor={shape.next}" if shape.next else "",
        f"waiting for a person's answer: {', '.join(shape.approvals)}" if shape.approvals else "",
    )
    return told(text, shape)


def _step_line(step: Mapping[str, Any]) -> StepLine:
    return picked(StepLine, step, output_preview="" if step["output"] is None else preview(step["output"]))


def _step_text(step: StepLine) -> str:
    error = f" {step.error.type}: {cut(step.error.message, 300)}" if step.error else ""
    more = f" ({step.progress})" if step.progress else ""
    return f"- {step.id}: {step.status}{more}{error}{' -> ' + step.output_preview if step.output_preview else ''}"


async def task_result(ctx: SoongContext, task: TaskId) -> Annotated[CallToolResult, TaskSummary]:
    """Show the result of a Soong task: its answer, the outputs of its steps, files written, calls denied, failures."""
    document = (await (await api_of(ctx)).call("GET", path("tasks", task, "result"))).document
    steps = document["steps"]
    given = {step["id"]: preview(step["output"]) for step in steps if step["status"] == "completed"}
    shown = dict(list(given.items())[:MAX_OUTPUTS])
    answer = document["answer"]
    shape = picked(
        TaskSummary,
        document,
        answer="" if answer is None else preview(answer, PAGE_CHARS),
        outputs=shown,
        outputs_left_out=len(given) - len(shown),
        failed=[picked(FailedStep, step) for step in steps if step["status"] == "failed"][:MAX_OUTPUTS],
        files_written=document["deliverables"][:MAX_OUTPUTS],
        denied=[picked(DeniedCall, one) for one in document["denials"]][:MAX_OUTPUTS],
        undone=[picked(DeniedCall, one) for one in document["undone"]][:MAX_OUTPUTS],
    )
    return told(_summary_text(shape), shape)


def _summary_text(shape: TaskSummary) -> str:
    return lines(
        f"task {shape.id} ({shape.title!r}): {shape.status}{', ' + shape.reason if shape.reason else ''}",
        f"answer: {shape.answer}" if shape.answer else "",
        (f"output of {step}: {text}" for step, text in shape.outputs.items()),
        f"{shape.outputs_left_out} more outputs: read_step" if shape.outputs_left_out else "",
        (_failed_line(one) for one in shape.failed),
        (f"wrote {one.path}" for one in shape.files_written),
        (f"denied in {one.step}: {one.tool}: {one.sentence}" for one in shape.denied),
        (f"not done in {one.step}: {one.tool}: {one.sentence}" for one in shape.undone),
    )


async def read_step(
    ctx: SoongContext,
    task: TaskId,
    step: Annotated[str, Field(max_length=300, description="The step's id, as show_task lists it.")],
    offset: Annotated[int, Field(ge=0, description="Begin at this character.")] = 0,
    limit: Annotated[int, Field(ge=1, le=PAGE_CHARS, description="At most so many characters.")] = PAGE_CHARS,
) -> Annotated[CallToolResult, StepText]:
    """Read the full output of one step of a Soong task, page by page; of a failed step its error."""
    document = (await (await api_of(ctx)).call("GET", path("tasks", task, "result"))).document
    found = next((one for one in document["steps"] if one["id"] == step), None)
    if found is None:
        known = ", ".join(one["id"] for one in document["steps"][:20])
        raise ToolError(f"task {task} has no step {step[:100]!r}; its first steps are {known}")
    value = found["output"] if found["output"] is not None else found["partial"]
    whole = (
        "" if value is None else value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, indent=1)
    )
    end = min(offset + limit, len(whole))
    shape = picked(
        StepText,
        found,
        task=task,
        step=step,
        text=whole[offset:end],
        offset=offset,
        total_chars=len(whole),
        next_offset=end if end < len(whole) else None,
    )
    error = f"error: {shape.error.type}: {shape.error.message}" if shape.error else ""
    more = f"more: offset={shape.next_offset} of {shape.total_chars}" if shape.next_offset is not None else ""
    return told(lines(f"step {step}: {shape.status}", error, shape.text, more), shape)


async def list_runs(
    ctx: SoongContext,
    task: Annotated[str, Field(max_length=80, description="Only of this task.")] = "",
    session: Annotated[str, Field(max_length=80, description="Only of this session.")] = "",
    limit: Annotated[int, Field(ge=1, le=100, description="At most so many.")] = 20,
    cursor: Annotated[str, Field(max_length=80, description="`next` of the page before.")] = "",
) -> Annotated[CallToolResult, RunList]:
    """List the runs of Soong agents, newest first: who ran which step, with which model, and how it ended."""
    query: dict[str, str | int] = {"task": task, "session": session, "limit": limit, "cursor": cursor}
    document = (await (await api_of(ctx)).call("GET", "/v1/runs", query=query)).document
    items = [picked(RunLine, one) for one in document["items"]]
    shape = RunList(items=items, next=document["next"])
    each = [
        f"{one.id} {one.status} {one.definition} ({one.model or 'no model'}) task {one.task} step {one.step or '-'}, "
        f"attempt {one.attempt}, {one.events} events"
        for one in items
    ]
    return told(lines(each or "there are no runs", f"next page: cursor={shape.next}" if shape.next else ""), shape)


async def read_run(
    ctx: SoongContext,
    run: RunId,
    view: Annotated[
        Literal["transcript", "events"],
        Field(description="transcript: what the model read and wrote. events: every tool call, decision and change."),
    ] = "transcript",
    after: Annotated[int, Field(ge=0, le=2**53, description="Begin after the entry of this number.")] = 0,
    limit: Annotated[int, Field(ge=1, le=MAX_ENTRIES, description="At most so many entries.")] = 20,
) -> Annotated[CallToolResult, RunPage]:
    """Read a Soong run page by page: the transcript of its model, or its log of tool calls, permissions and changes."""
    api = await api_of(ctx)
    status = (await api.call("GET", path("runs", run))).document["status"]
    entries, has_more = _within(await _entries(api, run, view, after, limit), limit)
    shape = RunPage(
        run=run, status=status, entries=entries, next_after=entries[-1].number if entries and has_more else None
    )
    text = lines(
        f"run {run}: {status}",
        [f"{one.number} {one.time} {one.type} {preview(one.data, MAX_FIELD_CHARS)}" for one in entries]
        or f"there is nothing after number {after}",
        f"next page: after={shape.next_after}" if shape.next_after is not None else "",
    )
    return told(text, shape)


async def _entries(api: ApiCalls, run: str, view: str, after: int, limit: int) -> list[RunEntry]:
    what = "nodes" if view == "transcript" else "events"
    query = {"after": after, "limit": limit + 1}
    items = (await api.call("GET", path("runs", run, what), query=query)).document["items"]
    if what == "nodes":
        return [_entry(one["number"], one["kind"], one["created"], one["payload"]) for one in items]
    return [_entry(int(one["id"]), one["type"].removeprefix("soong."), one["time"], one["data"]) for one in items]


def _entry(number: int, kind: str, time: str, data: Json) -> RunEntry:
    return RunEntry(number=number, type=kind, time=time, data=shortened(data))


def _within(found: Sequence[RunEntry], limit: int) -> tuple[list[RunEntry], bool]:
    """Return the entries of one page, within its size, and whether there are more; at least one."""
    kept: list[RunEntry] = []
    used = 0
    for entry in found[:limit]:
        used += len(preview(entry.data, MAX_PAGE_CHARS))
        if kept and used > MAX_PAGE_CHARS:
            break
        kept.append(entry)
    return kept, len(kept) < len(found)


def shortened(value: Json, depth: int = 0) -> Any:
    """Return a value whose texts are cut; what lies too deep is left out, with a mark."""
    if isinstance(value, str):
        return cut(value, MAX_FIELD_CHARS)
    if not isinstance(value, Mapping | list | tuple):
        return value
    if depth >= MAX_DEPTH:
        return "… (left out: nested too deep)"
    if isinstance(value, Mapping):
        return {name: shortened(item, depth + 1) for name, item in list(value.items())[:MAX_ENTRIES]}
    return [shortened(item, depth + 1) for item in value[:MAX_ENTRIES]]


async def read_artifact(
    ctx: SoongContext,
    digest: Annotated[
        str, Field(pattern="^[0-9a-f]{64}$", description="SHA-256 of it, as results and events name it.")
    ],
    offset: Annotated[int, Field(ge=0, le=2**53, description="Begin at this byte.")] = 0,
    limit: Annotated[int, Field(ge=1, le=20_000, description="At most so many bytes.")] = 20_000,
) -> Annotated[CallToolResult, ArtifactPage]:
    """Read an artifact of a Soong run by its digest, page by page: long tool output, or the copy of a written file."""
    query = {"offset": offset, "limit": limit}
    document = (await (await api_of(ctx)).call("GET", path("artifacts", digest), query=query)).document
    shape = ArtifactPage.model_validate(document)
    more = f"more: offset={shape.next_offset} of {shape.size_bytes} bytes" if shape.next_offset is not None else ""
    if shape.text is None and not shape.base64:
        raise ToolError(f"the artifact has {shape.size_bytes} bytes; there is nothing from {offset} on")
    text = shape.text if shape.text is not None else f"(not text; base64) {shape.base64}"
    return told(lines(text, more), shape)
