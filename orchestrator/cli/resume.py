"""``soong resume``: continue a paused or interrupted task, retry a failed one, follow a running one."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, TypeAlias

import typer
from msgspec.structs import replace

from soong.orchestrator.approvals.provenance import check_person_now
from soong.orchestrator.cli.asking import why_nobody_is_asked
from soong.orchestrator.cli.console import say, visible
from soong.orchestrator.cli.plan_modules import with_kept_modules
from soong.orchestrator.cli.plan_run import attached
from soong.orchestrator.cli.watch import InterruptedBeforeStartError, Interrupts, Watch
from soong.orchestrator.cli.worker_option import workers_option
from soong.orchestrator.client.client import Client
from soong.orchestrator.client.task_limits import raise_limits, read_limits
from soong.orchestrator.embedded.early_service import early_start
from soong.shared.core.errors import UsageError
from soong.shared.core.settings import Settings, load_settings
from soong.shared.core.worker_range import WorkerRange
from soong.shared.engine.runs.budgets import parse_budget
from soong.shared.engine.sessions.session import ApprovalMode
from soong.shared.engine.tasks.service import TaskService
from soong.shared.engine.tasks.status import TaskStatus
from soong.shared.engine.tasks.step import Task
from soong.shared.storage.store import Store

LAST: Final = ""
"""Stands for the newest task that has not completed, where an id is expected."""
Begin: TypeAlias = Callable[[TaskService, Task], Awaitable[None]]
"""Asks a task's owner for what lets the task continue."""


def command(
    task: str = typer.Argument("", help="The task's id, or a unique part of its beginning or end."),
    *,
    is_last: bool = typer.Option(False, "--last", help="The newest task that has not completed."),
    model: str = typer.Option("", "--model", help="Model of the agent steps that run again."),
    budget: list[str] = typer.Option(
        [], "--budget", metavar="LIMIT", help="What its session may use in all from now on: 5usd, 1mtok, or both."
    ),
    limits: list[str] = typer.Option(
        [],
        "--limit",
        metavar="NAME=VALUE",
        help="A limit of its plan, in all from now on: max_turns=50, tokens=…, cost_usd=…, wall_s=….",
    ),
    is_json: bool = typer.Option(False, "--json", help="Print one JSON document; progress goes to standard error."),
    detach: bool = typer.Option(False, "--detach", help="Continue it and do not follow it."),
    workers: WorkerRange | None = workers_option("Workers of a service started for this."),
    slots: int | None = typer.Option(None, "--slots", min=1, help="Slots of each of those workers."),
) -> None:
    """Continue a task: finished steps keep their results, no work is done twice."""
    if is_last == bool(task):
        raise UsageError(f"TASK is {task!r} and --last is {'given' if is_last else 'not given'}; name one of the two")
    settings = load_settings(workers=workers, slots=slots)

    of_session, of_task = parse_budget(*budget), read_limits(limits)
    if budget or limits:
        check_person_now("change a budget")

    async def resumed(tasks: TaskService, found: Task) -> None:
        await raise_limits(tasks.store.budgets, found, of_session=of_session, of_task=of_task)
        if found.status is not TaskStatus.COMPLETED:  # a completed task is only shown
            await tasks.resume(found, model=model)

    with early_start(settings.home, is_wanted=settings.is_embedded):
        code = asyncio.run(resume_and_follow(settings, task or LAST, resumed, is_detached=detach, is_json=is_json))
    raise typer.Exit(code)


async def resume_and_follow(settings: Settings, text: str, begin: Begin, *, is_detached: bool, is_json: bool) -> int:
    """Continue a task by what ``begin`` asks of its owner, and follow it; return the exit code."""
    from soong.orchestrator.cli.ids import opened_store  # late: SQLAlchemy

    async with opened_store(settings) as store:
        # Looked up before a service is started for it: a wrong id starts nothing.
        task_id = (await _wanted(store, text)).id
    settings = with_kept_modules(settings, task_id)
    interrupts = Interrupts()
    interrupts.listen()
    try:
        attachment = await attached(settings, interrupts)
    except InterruptedBeforeStartError:
        say("\ninterrupted before anything was started")
        return 130
    from soong.orchestrator.client.bootstrap import open_client

    client = await open_client(attachment.settings)
    watch = Watch(client, attachment, interrupts, settings, is_json)
    try:
        task = await client.store.tasks.task(task_id)
        await begin(client.tasks, task)
        return await _follow(client, watch, task, is_detached=is_detached)
    finally:
        await client.close()
        await watch.leave(wait=False)


async def _wanted(store: Store, text: str) -> Task:
    from soong.orchestrator.cli.ids import find_task, newest_open_task

    return await (newest_open_task(store) if text == LAST else find_task(store, text))


async def _follow(client: Client, watch: Watch, task: Task, *, is_detached: bool) -> int:
    if is_detached:
        say(f"task {task.id} continues")
        return 0
    session = await client.store.sessions.session(task.session_id)
    say(f"task {task.id}: {visible(task.title)}")
    nobody = why_nobody_is_asked()
    if session.approval_mode is ApprovalMode.PROMPT and nobody:
        say(f"  its session asks a person, and {nobody}: what no rule covers is denied after a while")
    return await watch.follow(replace(session, approval_mode=ApprovalMode.DENY) if nobody else session, task.id)
