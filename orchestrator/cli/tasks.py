"""``soong tasks``: what was planned, how it stands, what it looks like."""

import asyncio
import sys
from pathlib import Path

import typer

from orchestrator.cli.console import emit, inert, say, table
from orchestrator.cli.ids import find_task, open_store
from shared.clock import rfc3339
from shared.jsontext import JsonObject
from shared.settings import load_settings

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None)

_JSON = typer.Option(False, "--json", help="Print one JSON document.")
_TASK = typer.Argument(..., help="The task's id, or enough of it to be the only one.")


@app.command("list")
def list_tasks(
    *, limit: int = typer.Option(20, "--limit", min=1, help="At most so many, newest first."), is_json: bool = _JSON
) -> None:
    """List tasks, newest first."""
    asyncio.run(_list(limit, is_json=is_json))


@app.command()
def show(task: str = _TASK, *, is_json: bool = _JSON) -> None:
    """Show a task: its steps, what they wrote, what was denied."""
    asyncio.run(_show(task, is_json=is_json))


@app.command()
def validate(plan: Path = typer.Argument(..., help="The plan: a YAML or JSON file."), *, is_json: bool = _JSON) -> None:
    """Check a plan; nothing is written. Every offence is named with its place and what to do."""
    from orchestrator.catalogue import Catalogue
    from shared.tasks.reading import load_plan

    read = load_plan(plan, Catalogue.of(load_settings()).known())
    if is_json:
        emit(
            {"title": read.title, "inputs": [one.name for one in read.inputs], "steps": [one.id for one in read.steps]}
        )
    else:
        inputs = ", ".join(one.name + ("" if one.is_required else "?") for one in read.inputs) or "none"
        say(f"{plan} is a plan: {inert(read.title)!r}, {len(read.steps)} steps, inputs: {inputs}")


@app.command()
def graph(plan: str = typer.Argument(..., help="A plan file, or a task's id.")) -> None:
    """Draw a plan as Mermaid text."""
    from orchestrator.catalogue import Catalogue
    from shared.tasks.graph import mermaid
    from shared.tasks.reading import load_plan, plan_from_json

    if plan.startswith("task_") and not Path(plan).exists():
        sys.stdout.write(mermaid(plan_from_json(asyncio.run(_plan_of(plan)), plan)))
    else:
        sys.stdout.write(mermaid(load_plan(plan, Catalogue.of(load_settings()).known())))


@app.command()
def cancel(
    task: str = _TASK, *, reason: str = typer.Option("", "--reason", help="Why, for whoever reads it later.")
) -> None:
    """Cancel a task: nothing of it starts any more, what runs is stopped."""
    asyncio.run(_cancel(task, reason))


async def _list(limit: int, *, is_json: bool) -> None:
    store = await open_store(load_settings())
    try:
        tasks = await store.tasks(limit=limit)
        counts = [await store.counts(task.id) for task in tasks]
    finally:
        await store.close()
    if is_json:
        emit(
            [
                {
                    "id": task.id,
                    "title": task.title,
                    "status": str(task.status),
                    "reason": task.reason,
                    "created": rfc3339(task.created_us),
                    "steps": {str(status): number for status, number in count.by_status.items() if number},
                }
                for task, count in zip(tasks, counts, strict=True)
            ]
        )
        return
    rows = [
        (
            task.id,
            str(task.status),
            rfc3339(task.created_us)[:19],
            ", ".join(f"{number} {status}" for status, number in count.by_status.items() if number),
            task.title,
        )
        for task, count in zip(tasks, counts, strict=True)
    ]
    print(table(("task", "status", "created", "steps", "title"), rows))


async def _show(text: str, *, is_json: bool) -> None:
    from orchestrator.cli.summary import text_of
    from orchestrator.client import view_of
    from orchestrator.outcome import outcome_of

    settings = load_settings()
    store = await open_store(settings)
    try:
        task = await find_task(store, text)
        outcome = await outcome_of(store, await view_of(store, task.id), settings.home)
    finally:
        await store.close()
    if is_json:
        emit(outcome.as_json())
    else:
        print(text_of(outcome))


async def _plan_of(task_id: str) -> JsonObject:
    store = await open_store(load_settings())
    try:
        return (await find_task(store, task_id)).plan
    finally:
        await store.close()


async def _cancel(text: str, reason: str) -> None:
    from orchestrator.client_bootstrap import open_client
    from orchestrator.embedded.starter import attach
    from shared.sessions.session import CommandKind

    settings = load_settings()
    store = await open_store(settings)
    try:
        task = await find_task(store, text)
    finally:
        await store.close()
    attachment = await attach(settings, tell=say)
    try:
        client = await open_client(attachment.settings)
        try:
            await client.command(CommandKind.CANCEL, task, reason=reason)
        finally:
            await client.close()
    finally:
        await attachment.release()
    say(f"task {task.id} is cancelled")
