"""``soong tasks``: show, draw, check and control tasks."""

import asyncio
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

import typer

from soong.orchestrator.cli.options import JSON, RESULT_AS_JSON, SINCE, STATUS, TAGGED, TITLE, CommandTable
from soong.orchestrator.client.home_api import Document
from soong.orchestrator.terminal.api import Api, open_task
from soong.orchestrator.terminal.console import (
    Columns,
    confirm,
    emit,
    emit_text,
    for_each,
    listed,
    number_of,
    say,
    second_of,
    table_of,
    visible,
)
from soong.orchestrator.terminal.console import show as show_result
from soong.orchestrator.terminal.summary import ENDED, counted, results_text, still_running, text_of
from soong.shared.core.errors import EndedTaskError, UsageError
from soong.shared.core.jsontext import Json
from soong.shared.core.timing import LEAST_PAUSE_S

app = CommandTable()

_PLAN = typer.Argument(..., help="The plan: a YAML, JSON or Python file, or - for standard input.")
_TASK = typer.Argument(..., help="The task's id, or enough of it to be the only one.")
_TASKS: Any = typer.Argument([], metavar="TASK", help="The tasks' ids, or enough of each to be the only one.")
_SURE = typer.Option(False, "--yes", "-y", help="Do not ask before it is done to several tasks.")
_REASON = typer.Option("", "--reason", help="The reason, for the record.")


MANY: Final = 1_000
UNENDED: Final = ("running", "paused")
AGAIN: Final = ("failed", "cancelled")
COLUMNS: Final[Columns] = {
    "task": "id",
    "status": "status",
    "created": lambda task: second_of(task["created"]),
    "steps": lambda task: ", ".join(f"{number} {counted(status)}" for status, number in task["step_counts"].items()),
    "title": "title",
}


class Drawing(StrEnum):
    """How a graph is drawn."""

    MERMAID = "mermaid"
    SVG = "svg"


@app.command("list")
async def list_tasks(
    *,
    status: list[str] = STATUS,
    title: str = TITLE,
    tag: str = TAGGED,
    since: str = SINCE,
    limit: int = typer.Option(20, "--limit", min=1, help="At most so many, newest first."),
    is_json: bool = JSON,
) -> None:
    """List tasks, newest first."""
    async with Api() as api:
        tasks = await api.pages("/v1/tasks", limit=limit, status=status, title=title, tag=tag, since=since)
        asking: Counter[str] = Counter()
        if not is_json and any(task["status"] not in ENDED for task in tasks):
            questions = await api.pages("/v1/approvals", limit=MANY, state="pending")
            asking.update(one["identity"]["task_id"] for one in questions)

    def status_of(task: Document) -> str:
        return f"{task['status']}, {number_of(count, 'question')}" if (count := asking[task["id"]]) else task["status"]

    listed(tasks, {**COLUMNS, "status": status_of}, is_json=is_json)


@app.command()
async def show(
    task: str = _TASK,
    *,
    is_result: bool = typer.Option(
        False, "--result", help="Show the full result of every step, including partial results of failed steps."
    ),
    is_json: bool = JSON,
) -> None:
    """Show a task: its steps, what they wrote, what was denied."""
    async with Api() as api:
        path = f"/v1/tasks/{await api.find('task', task)}/result"
        result = await api.get(path) if is_json or is_result else await api.get(path, brief=True)
    show_result(result, lambda: results_text(result) if is_result else text_of(result), is_json=is_json)


@app.command()
def validate(
    plan: Path = _PLAN,
    *,
    project: Path = typer.Option(Path(), "--project", help="Folder whose own agent definitions count, too."),
    is_json: bool = JSON,
) -> None:
    """Check a plan and name every problem with its place and hint. Nothing is written.

    The modules that the plan names are imported, in a process of their own that has 20 seconds.
    """
    from soong.orchestrator.cli.plan_files import read_plan

    read = read_plan(plan, project, imports=True)
    if is_json:
        emit(
            {"title": read.title, "inputs": [one.name for one in read.inputs], "steps": [one.id for one in read.steps]}
        )
    else:
        inputs = ", ".join(one.name + ("" if one.is_required else "?") for one in read.inputs) or "none"
        steps = number_of(len(read.steps), "step")
        say(f"{visible(str(plan))} is a plan: '{visible(read.title)}', {steps}, inputs: {inputs}")


@app.command()
def schema() -> None:
    """Print the JSON Schema of plans, for editors that complete and mark as you type."""
    from soong.shared.engine.tasks.plan.reader import plan_schema

    emit(plan_schema())


@app.command()
async def graph(
    plan: str = typer.Argument(..., help="A plan file, or a task's id."),
    *,
    drawing: Drawing = typer.Option(Drawing.MERMAID, "--format", help="Mermaid text, or a picture as SVG."),
) -> None:
    """Draw a plan, or a task in its current state."""
    from soong.orchestrator.cli.plan_files import read_plan
    from soong.shared.engine.tasks.plan.checks import mermaid
    from soong.shared.engine.tasks.plan.picture import svg

    if plan.startswith("task_") and not Path(plan).exists():
        async with Api() as api:
            emit_text(await api.text(f"/v1/tasks/{await api.find('task', plan)}/graph", query={"format": str(drawing)}))
        return
    drawn = read_plan(Path(plan))
    emit_text(mermaid(drawn, {}) if drawing is Drawing.MERMAID else svg(drawn, {}))


@app.command()
async def cancel(
    tasks: list[str] = _TASKS,
    *,
    status: list[str] = STATUS,
    title: str = TITLE,
    tag: str = TAGGED,
    since: str = SINCE,
    is_sure: bool = _SURE,
    reason: str = _REASON,
) -> None:
    """Cancel tasks, named or chosen by options: nothing of them starts any more, what runs is stopped."""
    only = {"status": status, "title": title, "tag": tag, "since": since}
    async with Api() as api:

        async def act(task: Document) -> None:
            if task["status"] in ENDED:
                raise EndedTaskError(task["id"], task["status"])
            await api.post(f"/v1/tasks/{task['id']}/cancel", {"reason": reason})
            await _told(api, task["id"], "is cancelled")

        await for_each(await _chosen(api, "cancel", tasks, only, UNENDED, is_sure=is_sure), act)


async def _chosen(
    api: Api, act: str, names: Sequence[str], only: Mapping[str, Any], statuses: Collection[str], *, is_sure: bool
) -> list[Document]:
    """Return the named tasks, or those of a filter that are in one of these statuses; several after one yes."""
    if bool(names) is any(only.values()):
        raise UsageError(f"name the tasks to {act}, or choose them with --status, --title, --tag and --since")
    if names:
        found = [await api.get(f"/v1/tasks/{await api.find('task', name)}", limit=1) for name in names]
    else:
        found = await api.pages("/v1/tasks", limit=MANY, **only)
        found = [task for task in found if task["status"] in statuses]
        if not found:
            raise UsageError(f"there is no task to {act} among these")
    if not names or len(found) > 1:
        confirm(f"{act} {number_of(len(found), 'task')}", table_of(found, COLUMNS), is_sure=is_sure)
    return found


@app.command()
async def pause(task: str = _TASK, *, reason: str = _REASON) -> None:
    """Pause a task: no step starts, running steps are released; `soong resume` continues it."""
    async with Api() as api:
        task_id = await open_task(api, task)
        await api.post(f"/v1/tasks/{task_id}/pause", {"reason": reason})
        await _told(api, task_id, "is paused")


@app.command("add-workers")
async def add_workers(
    task: str = _TASK,
    *,
    count: int = typer.Option(1, "--count", min=1, help="How many pull workers; each takes a worker's slot."),
    max_steps: int = typer.Option(0, "--max-steps", min=0, help="Most steps that each takes; 0: as many as there are."),
    agent: str = typer.Option("", "--agent", help="Agent definition of the pull workers."),
    model: str = typer.Option("", "--model", help="Their model, as provider:name; else the service's."),
    instructions: str = typer.Option("", "--instructions", help="Their instructions in addition to how to pull."),
    tools: list[str] = typer.Option(
        [], "--tool", help="A tool that they have in addition to those for steps; repeatable."
    ),
    script: str = typer.Option("", "--script", help="Scripted agent that they run when no model is chosen."),
    pool: str = typer.Option("", "--pool", help="Queue that they wait in."),
) -> None:
    """Dispatch pull workers: runs that take a task's ready steps one by one, as those of `claim: pull` wait for."""
    body: dict[str, Json] = {"count": count, "max_steps": max_steps or None, "agent": agent, "model": model}
    body |= {"instructions": instructions, "allowed_tools": [*tools] or None, "script": script, "pool": pool}
    async with Api() as api:
        task_id = await open_task(api, task)
        await api.post(f"/v1/tasks/{task_id}/dispatch", body)
        say(f"task {task_id} has {number_of(count, 'more pull worker')}")


@app.command("priority")
async def set_priority(
    task: str = _TASK,
    priority: int = typer.Argument(..., min=-1_000, max=1_000, help="Higher first, among steps that are ready."),
    *,
    steps: list[str] = typer.Option([], "--step", metavar="STEP", help="Only this step; repeatable."),
    reason: str = _REASON,
) -> None:
    """Change the priority of a task's steps that have not ended."""
    async with Api() as api:
        task_id = await open_task(api, task)
        await api.post(f"/v1/tasks/{task_id}/priority", {"priority": priority, "steps": steps, "reason": reason})
    say(f"task {task_id}: {', '.join(steps) or 'every step that has not ended'} has the priority {priority}")


@app.command()
async def retry(
    tasks: list[str] = _TASKS,
    *,
    status: list[str] = STATUS,
    title: str = TITLE,
    tag: str = TAGGED,
    since: str = SINCE,
    is_sure: bool = _SURE,
    start: str = typer.Option("", "--from", metavar="STEP", help="Rerun this step and everything downstream of it."),
    detach: bool = typer.Option(False, "--detach", help="Let it run and do not follow it."),
    is_json: bool = RESULT_AS_JSON,
) -> None:
    """Rerun ended tasks: steps that did not complete, and everything downstream of a step. All else is kept.

    A single task is followed to its end; several, named or chosen by options, run on by themselves.
    """
    from soong.orchestrator.cli.submitting import continue_task

    async def act(name: str, *, is_detached: bool) -> int:
        body: dict[str, Json] = {"from": start, "reason": "asked for by `soong tasks retry`"}
        return await continue_task(
            name, "retry", body, is_detached=is_detached, is_json=is_json, changes_completed=True
        )

    only = {"status": status, "title": title, "tag": tag, "since": since}
    if len(tasks) == 1 and not any(only.values()):
        raise typer.Exit(await act(tasks[0], is_detached=detach))
    async with Api() as api:
        chosen = await _chosen(api, "retry", tasks, only, AGAIN, is_sure=is_sure)

    async def again(task: Document) -> None:
        await act(task["id"], is_detached=True)

    await for_each(chosen, again)


@app.command()
async def fork(
    task: str = _TASK,
    *,
    start: str = typer.Option(..., "--from", metavar="STEP", help="Run this step again, and all downstream of it."),
    file: Path = typer.Option(
        Path("-"), "--output", "-o", metavar="FILE", help="A new file for it; else it is printed."
    ),
) -> None:
    """Write a plan that repeats a task from one step on; every other completed step has its recorded result."""
    from soong.orchestrator.cli.plan_files import write_fork

    await write_fork(task, start, file)


async def _told(api: Api, task_id: str, done: str) -> None:
    """Report what was done to a task, and what still runs of it, unless that ends within a second."""
    words = ""
    for _ in range(10):
        words = still_running((await api.get(f"/v1/tasks/{task_id}/result", brief=True))["steps"])
        if not words:
            break
        await asyncio.sleep(LEAST_PAUSE_S)
    say(", ".join(one for one in (f"task {task_id} {done}", words) if one))
