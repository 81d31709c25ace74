"""A plan or a goal submitted and followed to its end: by the service of the home, which is started where none lives."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final

import typer

from soong.orchestrator.cli.options import RESULT_AS_JSON, SLOTS, WORKERS, pairs_of, value_of
from soong.orchestrator.client.home_api import Document
from soong.orchestrator.client.program import program
from soong.orchestrator.client.responder import cancelled
from soong.orchestrator.terminal.api import Api, variable
from soong.orchestrator.terminal.console import emit, output, say, visible, why_nobody_is_asked
from soong.orchestrator.terminal.held_service import HeldService, Interrupts
from soong.orchestrator.terminal.watch import EXIT_INTERRUPTED, Watch
from soong.shared.core.amounts import WorkerRange
from soong.shared.core.errors import UsageError
from soong.shared.core.identity import new_id
from soong.shared.core.jsontext import Json
from soong.shared.engine.sessions.session import ApprovalMode

if TYPE_CHECKING:
    from soong.shared.core.settings import Settings


MANY: Final = 1000


async def submit(
    path: str,
    body: Document,
    settings: "Callable[[], Settings]",
    *,
    is_detached: bool,
    is_json: bool,
    before_written: Callable[[str], None] | None = None,
) -> int:
    """Submit and follow to the end; return the exit code. Raises: SoongError; typer.Exit.

    ``settings`` checks what is submitted and says how a service is started for it. ``before_written`` gets the key of
    a submission that needs modules.
    """
    async with _at_service(settings, has_modules=before_written is not None) as (service, api, interrupts):
        headers = {"idempotency-key": new_id("key"), "traceparent": variable("TRACEPARENT")}
        if before_written is not None:
            before_written(headers["idempotency-key"])
        reply = await api.reply("POST", path, body=body, headers=headers)
        task, mode = reply.document["task"], reply.document["session"]["approval_mode"]
        if is_detached:
            if is_json:
                emit({"id": task["id"], "status": "running", "exit_code": 0})
            else:
                output(task["id"])
                follow, look = f"{program()} resume {task['id']}", f"{program()} tasks show {task['id']}"
                say(f"follow it: {follow}        look at it: {look}")
            return 0
        say(f"task {task['id']}: {visible(task['title'])}")
        if mode == ApprovalMode.DENY:
            say("  nobody is asked: a call that no --allow rule covers is denied")
        elif mode == ApprovalMode.INBOX:
            say(f"  questions wait for an answer: {program()} approvals watch")
        watch = Watch(service, api, interrupts, task, is_json, is_new=True)
        return await watch.follow(is_asked=mode == ApprovalMode.PROMPT and not why_nobody_is_asked())


@asynccontextmanager
async def _at_service(
    settings: "Callable[[], Settings]", *, has_modules: bool
) -> AsyncIterator[tuple[HeldService, Api, Interrupts]]:
    """Hold a service, unless Ctrl-C comes first. Raises: typer.Exit; SoongError."""
    interrupts = Interrupts()
    interrupts.listen()
    service = HeldService(settings, is_new=has_modules)
    try:
        holding, interrupted = asyncio.create_task(service.hold()), asyncio.create_task(interrupts.wait(1))
        await asyncio.wait({holding, interrupted}, return_when=asyncio.FIRST_COMPLETED)
        is_held = holding.done()
        await cancelled(interrupted, *([] if is_held else [holding]))
        if not is_held:
            say("\ninterrupted before anything was started")
            raise typer.Exit(EXIT_INTERRUPTED)
        await holding
        async with Api("terminal", attached=service.own, is_held=True) as api:
            yield service, api, interrupts
    finally:
        await service.release()


def approval_mode(asked_for: ApprovalMode | None, *, is_detached: bool, allows: bool) -> ApprovalMode:
    """Decide who answers: by default the person at the terminal; nobody where there is none.

    ``allows`` says that options of the command answer some questions beforehand.
    Raises: UsageError, somebody is to be asked where nobody can be; StartedByRunError, a run started the command, and
    it allows something.
    """
    if allows:
        from soong.orchestrator.approvals.approval import check_person_now

        check_person_now("allow what a plan asks for")
    nobody = "--detach leaves nobody to ask" if is_detached else why_nobody_is_asked()
    if asked_for is ApprovalMode.PROMPT and nobody:
        raise UsageError(
            f"--approvals prompt: {nobody}; use --allow TOOL:SCOPE for what is needed, or --approvals inbox"
        )
    if asked_for is not None:
        return asked_for
    return ApprovalMode.DENY if nobody else ApprovalMode.PROMPT


def check_models(settings: "Settings", names: frozenset[str]) -> None:
    """Check programs, packages and keys where the service that this command starts has this command's environment.
    Raises: InvalidConfigError.
    """
    from soong.orchestrator.embedded.service_file import read_record
    from soong.shared.agents.acp_agents import acp_agent
    from soong.shared.agents.model import SCRIPT, resolve_model
    from soong.shared.core.config import load_config
    from soong.shared.engine.tasks.plan.plan import ACP_PREFIX, OWN_PREFIX

    record = read_record(settings.home) if settings.is_embedded else None
    if settings.is_embedded and (record is None or not record.is_process_alive):
        for name in names - {SCRIPT}:
            if name.startswith(ACP_PREFIX):
                acp_agent(name, load_config(settings.home)).program()
            elif not name.startswith(OWN_PREFIX):
                resolve_model(name)


async def resume(
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
    body: dict[str, Json] = {"model": model}
    if budget or limits:
        from soong.orchestrator.approvals.approval import check_person_now
        from soong.orchestrator.client.task_limits import limits_from
        from soong.shared.engine.runs.budgets import parse_budget

        parse_budget(*budget)
        named = {name: value_of(value) for name, value in pairs_of(limits, "--limit", "such as max_turns=50").items()}
        limits_from(named, "--limit")
        body |= {"budget": ",".join(budget), "limits": named or None}
        check_person_now("change a budget")
    changes_completed = bool(body.get("budget") or body.get("limits"))
    code = await continue_task(
        "" if is_last else task,
        "resume",
        body,
        is_detached=detach,
        is_json=is_json,
        changes_completed=changes_completed,
        workers=workers,
        slots=slots,
    )
    raise typer.Exit(code)


async def continue_task(
    text: str,
    operation: str,
    body: Mapping[str, Json],
    *,
    is_detached: bool,
    is_json: bool,
    changes_completed: bool,
    workers: WorkerRange | None = None,
    slots: int | None = None,
) -> int:
    """Let a task continue by an operation and follow it; return the exit code.

    Without a text it is the newest that has not completed. ``changes_completed``: the operation is asked for of a
    completed task, too, which is else only shown.
    """
    # Looked up before a service is started for it: a wrong id starts nothing.
    async with Api() as api:
        if text:
            task = await api.get(f"/v1/tasks/{await api.find('task', text)}", limit=1)
        else:
            tasks = await api.pages("/v1/tasks", limit=MANY)
            task = next((one for one in tasks if one["status"] != "completed"), {})
        if not task:
            raise UsageError("every task has completed; name one to look at: soong tasks list")
        session = await api.get(f"/v1/sessions/{task['session']}")

    def settings() -> "Settings":
        from soong.shared.core.settings import load_settings

        return load_settings(workers=workers, slots=slots)

    async with _at_service(settings, has_modules=False) as (service, held, interrupts):
        if task["status"] != "completed" or changes_completed or "failed" in task["step_counts"]:
            await held.post(f"/v1/tasks/{task['id']}/{operation}", dict(body))
        if is_detached:
            say(f"task {task['id']} continues")
            return 0
        say(f"task {task['id']}: {visible(task['title'])}")
        nobody, is_asked = why_nobody_is_asked(), session["approval_mode"] == ApprovalMode.PROMPT
        if is_asked and nobody:
            say(f"  its session asks a person, and {nobody}: what no rule covers is denied after a while")
        watch = Watch(service, held, interrupts, task, is_json, is_new=False)
        return await watch.follow(is_asked=is_asked and not nobody)
