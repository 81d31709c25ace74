"""``soong runs``: who ran what, under which name, with which tools, and what happened."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import typer

from soong.orchestrator.cli.console import compact, emit, one_line, output, table
from soong.orchestrator.cli.ids import deployment, find_run, find_task, opened_store
from soong.orchestrator.cli.steering import asked_of_task
from soong.orchestrator.cli.step_words import time_text
from soong.orchestrator.client.tail import Listen, RunTail, no_subscription
from soong.orchestrator.schemas.run import RunDetail, RunSchema, settings_of
from soong.shared.core.clock import rfc3339
from soong.shared.core.settings import Settings, load_settings
from soong.shared.engine.runs.events import Event, EventType
from soong.shared.engine.runs.record import Run
from soong.shared.storage.store import Store

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None)

LAST_EVENTS = 5
"""The end of a step and of its run are among the last ones of a log."""
TASK_SHOWN = 8
"""Characters of a task's id in the list: its end is enough to name it."""
_JSON = typer.Option(False, "--json", help="Print one JSON document.")
_RUN = typer.Argument(..., help="The run's id, enough of it to be the only one, or TASK/STEP.")


@app.command("list")
def list_runs(
    *,
    task: str = typer.Option("", "--task", help="Only the runs of this task."),
    limit: int = typer.Option(50, "--limit", min=1, help="At most this many."),
    is_json: bool = _JSON,
) -> None:
    """List runs, newest first."""
    asyncio.run(_list(task, limit, is_json=is_json))


@app.command()
def show(run: str = _RUN, *, is_json: bool = _JSON) -> None:
    """Show a run: lineage, tools with the reason for each, usage, times."""
    asyncio.run(_show(run, is_json=is_json))


@app.command()
def tail(
    run: str = _RUN,
    *,
    start: int = typer.Option(1, "--from", min=1, metavar="N", help="Begin with the event of this number."),
    follow: bool = typer.Option(False, "--follow", "-f", help="Follow the log until the run has ended."),
    is_json: bool = typer.Option(
        False, "--json", help="Print CloudEvents: one document, or a line each with --follow."
    ),
) -> None:
    """Show what happened in a run, event by event."""
    asyncio.run(_tail(run, start, is_followed=follow, is_json=is_json))


@app.command()
def abort(
    run: str = _RUN,
    call: str = typer.Argument("", help="The id of a tool call; left out: any that is under way."),
    *,
    reason: str = typer.Option("", "--reason", help="Why; it is in the results of the calls."),
    goes_on: bool = typer.Option(False, "--continue", help="End the call alone: its agent continues."),
) -> None:
    """End a run with its tool calls; with --continue one call alone, whose result the agent reads."""
    asyncio.run(_abort(run, call, reason, goes_on=goes_on))


async def _abort(text: str, call: str, reason: str, *, goes_on: bool) -> None:
    async with opened_store(load_settings()) as store:
        run = await find_run(store, text)
    await asked_of_task(
        run.identity.task_id,
        lambda tasks, task: tasks.abort(task, run.id, call, reason=reason, goes_on=goes_on),
        f"aborts {'a call of ' if goes_on else ''}run {run.id}",
    )


async def _list(task: str, limit: int, *, is_json: bool) -> None:
    async with opened_store(load_settings()) as store:
        task_id = (await find_task(store, task)).id if task else ""
        runs = (await store.runs.list_runs(task_id=task_id, limit=100_000))[-limit:][::-1]
    if is_json:
        emit([RunSchema.of(run).model_dump() for run in runs])
        return
    rows = [
        (
            run.id,
            run.identity.task_id[-TASK_SHOWN:],
            run.identity.step_key.partition("/")[2] or run.identity.role,
            f"{run.status}, malformed row" if run.malformed else str(run.status),
            run.identity.definition,
            time_text(_seconds(run)),
            str(run.attempt),
        )
        for run in runs
    ]
    output(table(("run", "task", "step", "status", "agent", "time", "attempt"), rows))


async def _show(text: str, *, is_json: bool) -> None:
    async with opened_store(load_settings()) as store:
        run = await find_run(store, text)
        error = await _error(store, run)
    if is_json:
        emit(RunDetail.of(run).model_dump())
        return
    shown = {name: value for name, value in RunSchema.of(run).model_dump().items() if value not in ("", None)}
    shown |= {"error": error} if error else {}
    shown |= {"settings": settings} if (settings := settings_of(run)) else {}
    output(
        table(
            ("run", run.id),
            [(name, compact(value) if isinstance(value, dict) else str(value)) for name, value in shown.items()],
        )
    )
    decisions = run.surface.get("decisions")
    rows = (
        [(str(row[0]), "yes" if row[1] else "no", str(row[2])) for row in decisions]
        if isinstance(decisions, list)
        else []
    )
    if rows:
        output("\n" + table(("tool", "has it", "because"), rows, uncut=("because",)))


async def _error(store: Store, run: Run) -> str:
    """Return why a run failed, also one that was followed by another attempt; empty for any other."""
    last = await store.runs.events(run.id, after_seq=max(0, run.last_seq - LAST_EVENTS))
    failed = next((event.data for event in reversed(last) if event.type == EventType.STEP_FAILED), {})
    return f"{failed['type']}: {failed.get('message', '')}" if failed.get("type") else ""


async def _tail(text: str, start: int, *, is_followed: bool, is_json: bool) -> None:
    settings = await deployment(load_settings())
    async with opened_store(settings) as store:
        run = await find_run(store, text)
        if is_followed:
            async with _listening(settings) as listen:
                async for event in RunTail(store.runs, listen).follow(run.id, from_seq=start):
                    _print_event(event, is_json=is_json)
            return
        events = [event async for event in RunTail(store.runs).replay(run.id, from_seq=start)]
    if is_json:
        emit([event.envelope() for event in events])
        return
    for event in events:
        _print_event(event, is_json=False)


@asynccontextmanager
async def _listening(settings: Settings) -> AsyncIterator[Listen]:
    """Give what subscribes to a run: over the service's Redis; where none is known, one that never reports."""
    if not settings.redis_url:
        yield no_subscription
        return
    from soong.orchestrator.client.bootstrap import open_subscriptions  # Redis, only for those who follow

    subscriptions = open_subscriptions(settings)
    try:
        yield subscriptions.subscribe_run
    finally:
        await subscriptions.close()


def _print_event(event: Event, *, is_json: bool) -> None:
    if is_json:
        emit(event.envelope(), is_line=True)
    else:
        data = compact(dict(event.data), 300) if event.data else ""
        output(f"{event.seq:>4}  {rfc3339(event.time_us)[11:23]}  {one_line(event.type):<22} {data}")


def _seconds(run: Run) -> float | None:
    if run.started_us is None or run.ended_us is None:
        return None
    return (run.ended_us - run.started_us) / 1_000_000
