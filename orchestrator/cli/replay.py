"""``soong replay``: plays a task again from its record, offline, and says where it would go another way now."""

import asyncio
from typing import TYPE_CHECKING, Final

import typer

from soong.orchestrator.cli.console import emit, number_of, output, say, visible
from soong.orchestrator.cli.ids import find_task, opened_store
from soong.shared.core.errors import NotFoundError, UsageError
from soong.shared.core.settings import load_settings
from soong.shared.engine.tasks.functions import suggestion

if TYPE_CHECKING:
    from soong.orchestrator.replay.task import RunVerdict, TaskReplay

EXIT_DIFFERENT: Final = 1
_SYMBOLS: Final = {"same": "✓", "different": "✗", "given": "·"}


def command(
    task: str = typer.Argument(..., help="The task's id, or enough of it to be the only one."),
    *,
    step: str = typer.Option("", "--step", metavar="STEP", help="Replay the runs of this step only."),
    is_json: bool = typer.Option(False, "--json", help="Print one JSON document."),
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
        _show(found, is_whole=not step_id)
    return 0 if found.is_same else EXIT_DIFFERENT


def _show(found: "TaskReplay", *, is_whole: bool) -> None:
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
