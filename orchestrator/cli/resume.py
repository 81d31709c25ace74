"""``soong resume``: continues, retries or follows a task. ``soong tasks fork``: writes an ended task as a plan."""

import asyncio
import json
import re
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Final, TypeAlias

import typer
import yaml
from msgspec.structs import replace

from soong.orchestrator.approvals.approval import check_person_now
from soong.orchestrator.cli.console import emit_text, say, visible, why_nobody_is_asked
from soong.orchestrator.cli.ids import newest_open_task, opened_store
from soong.orchestrator.cli.options import RESULT_AS_JSON, SLOTS, WORKERS
from soong.orchestrator.cli.plan_modules import with_kept_modules
from soong.orchestrator.cli.plan_run import watching
from soong.orchestrator.cli.watch import Watch
from soong.orchestrator.client.task_limits import raise_limits, read_limits
from soong.orchestrator.embedded.early_service import early_start
from soong.orchestrator.operations.ids import find_task
from soong.shared.core.errors import UsageError
from soong.shared.core.jsontext import JsonObject
from soong.shared.core.settings import Settings, load_settings
from soong.shared.core.worker_range import WorkerRange
from soong.shared.engine.runs.budgets import parse_budget
from soong.shared.engine.sessions.session import ApprovalMode
from soong.shared.engine.tasks.plan.yaml_document import read_document
from soong.shared.engine.tasks.rerun import forked_plan
from soong.shared.engine.tasks.service import TaskService
from soong.shared.engine.tasks.status import StepStatus, TaskStatus
from soong.shared.engine.tasks.step import Task

LAST: Final = ""
"""Stands for the newest task that has not completed, where an id is expected."""
Begin: TypeAlias = Callable[[TaskService, Task], Awaitable[None]]
"""Asks a task's owner for what lets the task continue."""

COLUMNS: Final = 110
_PLAIN: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_ ./()-]*")


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
    is_json: bool = RESULT_AS_JSON,
    detach: bool = typer.Option(False, "--detach", help="Continue it and do not follow it."),
    workers: WorkerRange | None = WORKERS,
    slots: int | None = SLOTS,
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
    async with opened_store(settings) as store:
        # Looked up before a service is started for it: a wrong id starts nothing.
        task_id = (await (newest_open_task(store) if text == LAST else find_task(store, text))).id
    settings = with_kept_modules(settings, task_id)
    async with watching(settings, is_json=is_json) as watch:
        task = await watch.client.store.tasks.task(task_id)
        await begin(watch.client.tasks, task)
        return await _follow(watch, task, is_detached=is_detached)


async def _follow(watch: Watch, task: Task, *, is_detached: bool) -> int:
    if is_detached:
        say(f"task {task.id} continues")
        return 0
    session = await watch.client.store.sessions.session(task.session_id)
    say(f"task {task.id}: {visible(task.title)}")
    nobody = why_nobody_is_asked()
    if session.approval_mode is ApprovalMode.PROMPT and nobody:
        say(f"  its session asks a person, and {nobody}: what no rule covers is denied after a while")
    return await watch.follow(replace(session, approval_mode=ApprovalMode.DENY) if nobody else session, task.id)


async def write_fork(text: str, from_step: str, file: Path) -> None:
    """Write the plan of a fork to ``file``, which must be new; ``-`` is standard output."""
    async with opened_store(load_settings()) as store:
        task, steps = await store.tasks.task_with_steps((await find_task(store, text)).id)
        if not task.status.is_terminal:
            raise UsageError(f"task {task.id} is {task.status}; fork it when it has ended")
        done = [step for step in steps if step.status is StepStatus.COMPLETED and not step.map_key]
        results = {step.key: await store.tasks.result(step.key) for step in done}
    plan = forked_plan(task, steps, results, from_step)
    written = plan_text(plan)
    if file == Path("-"):
        emit_text(written)
        return
    try:
        with file.open("x", encoding="utf-8") as out:
            out.write(written)
    except FileExistsError:
        raise UsageError(f"{str(file)!r} exists; name a new file") from None
    except OSError as error:
        raise UsageError(f"{str(file)!r} cannot be written: {error.strerror}") from None
    say(f"{visible(str(file))}: change what you like, then `soong run {visible(str(file))}`")
    if isinstance(modules := plan.get("modules"), list | tuple) and modules:
        say(f"  its modules ({visible(', '.join(map(str, modules)))}) must be next to it")


def plan_text(plan: JsonObject) -> str:
    """Return a plan as YAML that people can change, or as JSON where YAML would say something else.

    Raises: InvalidPlanError when it is too large for a plan.
    """
    plain = _plain(plan)
    written = yaml.dump(plain, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=COLUMNS)
    return written if read_document(written, "the fork").value == plain else json.dumps(plain, indent=2)


class _Dumper(yaml.SafeDumper):
    """Writes texts of several lines as they are, and quotes what a reader might take for something else."""

    def ignore_aliases(self, _data: Any) -> bool:
        return True


def _text(dumper: yaml.SafeDumper, value: str) -> yaml.ScalarNode:
    style = "|" if "\n" in value else None if _PLAIN.fullmatch(value) else '"'
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, style=style)


_Dumper.add_representer(str, _text)


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _plain(item) for name, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, list | tuple) else value
