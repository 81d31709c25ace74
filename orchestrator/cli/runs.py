"""``soong runs`` and ``soong replay``: runs and their logs, and a task replayed offline from its record."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final

import typer

from soong.orchestrator.cli.console import compact, emit, number_of, one_line, output, say, table, visible
from soong.orchestrator.cli.ids import asked_of_task, deployment, opened_store
from soong.orchestrator.cli.options import JSON
from soong.orchestrator.cli.step_words import time_text
from soong.orchestrator.client.tail import Listen, RunTail, no_subscription
from soong.orchestrator.operations.ids import find_run, find_task
from soong.orchestrator.schemas.run import RunDetail, RunSchema, settings_of
from soong.shared.core.clock import rfc3339
from soong.shared.core.errors import NotFoundError, UsageError
from soong.shared.core.settings import Settings, load_settings
from soong.shared.engine.runs.events import Event, EventType
from soong.shared.engine.runs.record import Run
from soong.shared.engine.tasks.functions import suggestion
from soong.shared.storage.store import Store

if TYPE_CHECKING:
    from soong.orchestrator.replay.task import RunVerdict, TaskReplay

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None)

LAST_EVENTS = 5
"""The end of a step and of its run are among the last ones of a log."""
TASK_SHOWN = 8
"""Characters of a task's id in the list: its end is enough to name it."""
_RUN = typer.Argument(..., help="The run's id, enough of it to be the only one, or TASK/STEP.")

EXIT_DIFFERENT: Final = 1
_SYMBOLS: Final = {"same": "✓", "different": "✗", "given": "·"}


@app.command("list")
def list_runs(
    *,
    task: str = typer.Option("", "--task", help="Only the runs of this task."),
    limit: int = typer.Option(50, "--limit", min=1, help="At most this many."),
    is_json: bool = JSON,
) -> None:
    """List runs, newest first."""
    asyncio.run(_list(task, limit, is_json=is_json))


@app.command()
def show(run: str = _RUN, *, is_json: bool = JSON) -> None:
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
    shown |= {"settings": settings} if (settings := settings_of(run.surface)) else {}
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
    from soong.orchestrator.client.bootstrap import opened_subscriber  # Redis, only for those who follow

    async with opened_subscriber(settings) as subscriber:
        yield subscriber.subscribe_run


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


def replay(
    task: str = typer.Argument(..., help="The task's id, or enough of it to be the only one."),
    *,
    step: str = typer.Option("", "--step", metavar="STEP", help="Replay the runs of this step only."),
    is_json: bool = JSON,
) -> None:
    """Replay a task from its record, offline: no model is asked, no tool is called, nothing is written.

    Every agent decides again from the answers and results that it had then. Exit code 1: something differs.
    """
    raise typer.Exit(asyncio.run(_replay(task, step, is_json=is_json)))


async def _replay(text: str, step_id: str, *, is_json: bool) -> int:
    from soong.orchestrator.client.catalog import Catalogue
    from soong.orchestrator.replay.task import Replayer, read_task

    settings = load_settings()
    async with opened_store(settings) as store:
        record = await read_task(store, await find_task(store, text))
    if not record.task.status.is_terminal:
        raise UsageError(f"task {record.task.id} is {record.task.status}; replay it when it has ended")
    if step_id and all(step.step_id != step_id for step in record.steps):
        raise NotFoundError("step", step_id, suggestion(step_id, [step.step_id for step in record.steps]))
    found = await Replayer(settings, Catalogue.of(settings, starts_servers=False)).replay(record, step_id)
    if is_json:
        emit(found.as_json())
    else:
        _show_replay(found, is_whole=not step_id)
    return 0 if found.is_same else EXIT_DIFFERENT


def _show_replay(found: "TaskReplay", *, is_whole: bool) -> None:
    say(f"task {found.task_id}: {visible(found.title)}")
    if is_whole:
        symbol = _SYMBOLS["different" if found.dag else "same"]
        output(f"  {symbol} the DAG: {number_of(found.steps, 'step')}")
        for difference in found.dag:
            output(f"      {visible(str(difference))}")
    for run in found.runs:
        output(f"  {_SYMBOLS[run.verdict]} {visible(run.name)}  {_facts(run)}")
        for difference in run.differences:
            output(f"      {visible(str(difference))}")
    changed = sum(run.verdict == "different" for run in found.runs)
    played = sum(run.verdict != "given" for run in found.runs)
    if found.is_same:
        events = sum(run.events for run in found.runs)
        output(f"the same: {number_of(played, 'run')}, {number_of(events, 'event')}")
    else:
        output(f"different: {changed} of {number_of(played, 'run')}" + (", and the DAG" if found.dag else ""))


def _facts(run: "RunVerdict") -> str:
    if run.note:
        return run.note
    lives = f", {run.lives} lives" if run.lives > 1 else ""
    return f"{number_of(run.turns, 'turn')}, {number_of(run.calls, 'call')}{lives}"
