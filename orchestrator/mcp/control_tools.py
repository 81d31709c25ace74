"""Tools that control a task, and look at the service: workers and usage."""

from typing import Annotated

from mcp_types import CallToolResult
from pydantic import Field

from soong.orchestrator.mcp.api import SoongContext, api_of
from soong.orchestrator.mcp.shapes import TaskControl, WorkerLine, WorkerList
from soong.orchestrator.mcp.task_tools import TaskId
from soong.orchestrator.mcp.texts import counts_of, lines, path, told, without_empty
from soong.orchestrator.schemas.usage import UsageSum, UsageSums

Reason = Annotated[str, Field(max_length=2_000, description="The reason, for the record.")]


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
    shape = TaskControl.model_validate({name: document[name] for name in TaskControl.model_fields})
    return told(f"task {shape.id} is {shape.status}; {counts_of(shape.step_counts)}", shape)


async def list_workers(ctx: SoongContext) -> Annotated[CallToolResult, WorkerList]:
    """List the Soong workers, the steps that each holds, and what waits for a free slot."""
    document = (await (await api_of(ctx)).call("GET", "/v1/workers")).document
    workers = [
        WorkerLine(
            name=one["name"],
            host=one["host"],
            state=one["state"],
            slots=one["slots"],
            used=one["used"],
            runs=[run["step"] for run in one["runs"]],
        )
        for one in document["workers"]
    ]
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
