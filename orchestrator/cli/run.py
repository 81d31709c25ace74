"""``soong run``: a client of a living service, or of an ephemeral one that it starts."""

import asyncio
import importlib
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import typer

from soong.orchestrator.approvals.provenance import check_person_now
from soong.orchestrator.cli.asking import why_nobody_is_asked
from soong.orchestrator.cli.console import emit, output, say, visible
from soong.orchestrator.cli.plan_file import read_plan
from soong.orchestrator.cli.plan_modules import PlanModules, keep_modules
from soong.orchestrator.cli.watch import InterruptedBeforeStartError, Interrupts, Watch, interruptible
from soong.orchestrator.client.catalog import Catalogue
from soong.orchestrator.client.outcome import ExitCode
from soong.orchestrator.client.program import program
from soong.orchestrator.client.submission import Submission, submission
from soong.orchestrator.embedded.service_file import read_record
from soong.orchestrator.embedded.starter import Attachment, attach
from soong.shared.agents.model import SCRIPT, resolve_model
from soong.shared.core.clock import SystemClock
from soong.shared.core.errors import UsageError
from soong.shared.core.settings import Settings, load_settings
from soong.shared.engine.sessions.session import ApprovalMode
from soong.shared.engine.tasks.expansion import models_of
from soong.shared.engine.tasks.plan.model_settings import parse_settings
from soong.shared.engine.tasks.plan.plan import ACP_PREFIX
from soong.shared.permissions.consent import Preview, StepGrant

BUDGET_HELP: Final = "What it may use in all: 2usd, 200ktok, or both [the configuration's]."
SETTING_HELP: Final = (
    "How the model is asked: temperature, max_tokens, thinking, timeout_s, parallel_calls, cache; may be repeated."
)


def command(
    plan: Path = typer.Argument(..., help="The plan: a YAML or JSON file, or - for standard input."),
    *,
    project: Path = typer.Option(Path(), "--project", help="Folder that the steps work in."),
    given: list[str] = typer.Option([], "--input", metavar="NAME=VALUE", help="An input of the plan; may be repeated."),
    model: str | None = typer.Option(None, "--model", help="Default model of agent steps [SOONG_MODEL]."),
    setting: list[str] = typer.Option([], "--setting", metavar="NAME=VALUE", help=SETTING_HELP),
    allow: list[str] = typer.Option(
        [], "--allow", metavar="TOOL:SCOPE", help="Allow a tool for one folder, file or host; may be repeated."
    ),
    is_previewed: bool = typer.Option(False, "--preview", help="Show what steps will ask for; take one answer each."),
    allowed_steps: list[str] = typer.Option(
        [], "--allow-step", metavar="STEP", help="Pre-approve the permissions declared by this step (repeatable)."
    ),
    approvals: ApprovalMode | None = typer.Option(
        None,
        "--approvals",
        help="prompt: you answer here; inbox: anyone with the right answers at any time (soong approvals, HTTP); "
        "deny: what no rule allows is denied [prompt in a terminal, else deny].",
    ),
    detach: bool = typer.Option(False, "--detach", help="Leave it running and print its id."),
    budget: list[str] = typer.Option([], "--budget", metavar="LIMIT", help=BUDGET_HELP),
    is_json: bool = typer.Option(False, "--json", help="Print one JSON document; progress goes to standard error."),
    workers: int | None = typer.Option(None, "--workers", min=1, help="Workers of a service started for this."),
    slots: int | None = typer.Option(None, "--slots", min=1, help="Slots of each of those workers."),
    max_concurrent: int | None = typer.Option(
        None, "--max-concurrent", min=1, help="Most of its steps at once [SOONG_MAX_CONCURRENT_CHILDREN_PER_SESSION]."
    ),
) -> None:
    """Run a plan and follow it to its end."""
    most = max_concurrent
    settings = load_settings(model=model, workers=workers, slots=slots, max_concurrent_children_per_session=most)
    catalogue = Catalogue.of(settings).at(project)
    inputs, modules = read_inputs(given), PlanModules(settings, catalogue, plan)
    settings = modules.added_to_settings(read := read_plan(plan, modules.names()))
    mode = approval_mode(approvals, is_detached=detach, allows=bool(allow or allowed_steps))
    grants: Sequence[StepGrant] = ()
    if is_previewed or allowed_steps:
        from soong.orchestrator.client.preview import preview_of

        preview = preview_of(read, inputs, project=project, allow=allow, catalogue=catalogue, settings=settings)
        grants = _consented(preview, allowed_steps, is_shown=is_previewed, is_json=is_json)
    prepared = submission(
        read,
        inputs,
        project=project,
        approval_mode=mode,
        model=settings.model,
        allow=allow,
        catalogue=catalogue,
        clock=SystemClock(),
        principal=settings.principal,
        step_grants=grants,
        budget=budget,
        settings=parse_settings(setting),
    )
    check_models(settings, models_of(read, settings.model))
    raise typer.Exit(asyncio.run(run_and_follow(settings, prepared, is_detached=detach, is_json=is_json)))


def _consented(preview: Preview, steps: Sequence[str], *, is_shown: bool, is_json: bool) -> Sequence[StepGrant]:
    """Return what is consented to step by step; end here when nothing is to be run."""
    from soong.orchestrator.cli.preview import PreviewStoppedError, consented

    try:
        grants = consented(preview, steps, is_shown=is_shown, is_json=is_json)
    except PreviewStoppedError:
        say("stopped before anything was started")
        raise typer.Exit(ExitCode.INTERRUPTED) from None
    if grants is None:
        raise typer.Exit
    return grants


def check_models(settings: Settings, names: frozenset[str]) -> None:
    """Check packages and keys where the service that this command starts has this command's environment.

    Raises: InvalidConfigError.
    """
    record = read_record(settings.home) if settings.is_embedded else None
    if settings.is_embedded and (record is None or not record.is_process_alive):
        for name in names - {SCRIPT}:
            if not name.startswith(ACP_PREFIX):  # an agent of others, which its worker looks for
                resolve_model(name)


def read_inputs(given: list[str]) -> dict[str, str]:
    """Read ``name=value`` words. Raises: UsageError."""
    inputs: dict[str, str] = {}
    for word in given:
        name, separator, value = word.partition("=")
        if not separator or not name:
            raise UsageError(f"--input {word!r} has no name or no value; write --input name=value")
        if name in inputs:
            raise UsageError(f"--input {name!r} is given twice; give it once")
        inputs[name] = value
    return inputs


def approval_mode(asked_for: ApprovalMode | None, *, is_detached: bool, allows: bool) -> ApprovalMode:
    """Decide who answers: by default the person at the terminal; nobody where there is none.

    ``allows`` says that options of the command answer some questions beforehand.

    Raises:
        UsageError: somebody is to be asked where nobody can be.
        StartedByRunError: a run started the command, and it allows something.
    """
    if allows:
        check_person_now("allow what a plan asks for")
    nobody = "--detach leaves nobody to ask" if is_detached else why_nobody_is_asked()
    if asked_for is ApprovalMode.PROMPT and nobody:
        raise UsageError(
            f"--approvals prompt: {nobody}; use --allow TOOL:SCOPE for what is needed, or --approvals inbox"
        )
    if asked_for is not None:
        return asked_for
    return ApprovalMode.DENY if nobody else ApprovalMode.PROMPT


async def run_and_follow(settings: Settings, prepared: Submission, *, is_detached: bool, is_json: bool) -> int:
    """Write a submission, and follow its task unless it is left alone; return the exit code."""
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
        keep_modules(settings, prepared.task)
        await client.submit(prepared.session, prepared.task, budget=prepared.budget)
        if is_detached:
            _tell_detached(prepared.task.id, is_json=is_json)
            return 0
        say(f"task {prepared.task.id}: {visible(prepared.task.title)}")
        _say_who_answers(prepared.session.approval_mode)
        return await watch.follow(prepared.session, prepared.task.id)
    finally:
        await client.close()
        await watch.leave(wait=False)


def _say_who_answers(mode: ApprovalMode) -> None:
    if mode is ApprovalMode.DENY:
        say("  nobody is asked: a call that no --allow rule covers is denied")
    elif mode is ApprovalMode.INBOX:
        say(f"  questions wait for an answer: {program()} approvals watch")


async def attached(settings: Settings, interrupts: Interrupts) -> Attachment:
    """Attach to a service, starting one if need be. Raises: InterruptedBeforeStartError; UnavailableError."""
    work = asyncio.create_task(attach(settings, tell=say, meanwhile=_import_client))
    return await interruptible(interrupts, work)


def _import_client() -> None:
    """Import SQLAlchemy and Redis on a thread while the service starts on other cores: half of a client's CPU."""
    module = "soong.orchestrator.client.bootstrap"
    threading.Thread(target=importlib.import_module, args=(module,), name="soong-import", daemon=True).start()


def _tell_detached(task_id: str, *, is_json: bool) -> None:
    if is_json:
        emit({"id": task_id, "status": "running", "exit_code": 0})
        return
    output(task_id)
    say(f"follow it: {program()} resume {task_id}        look at it: {program()} tasks show {task_id}")
