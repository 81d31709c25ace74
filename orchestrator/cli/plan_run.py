"""A plan run by a client of its own: of a living service, of an ephemeral one that it starts, or of a deployment."""

import asyncio
import importlib
import threading
from collections.abc import Mapping, Sequence

import typer

from soong.orchestrator.approvals.provenance import check_person_now
from soong.orchestrator.cli.asking import why_nobody_is_asked
from soong.orchestrator.cli.console import say, visible
from soong.orchestrator.cli.plan_file import read_plan
from soong.orchestrator.cli.plan_modules import PlanModules, keep_modules
from soong.orchestrator.cli.run_arguments import RunArguments, read_inputs, say_who_answers, tell_detached
from soong.orchestrator.cli.service_run import Handed
from soong.orchestrator.cli.watch import InterruptedBeforeStartError, Interrupts, Watch, interruptible
from soong.orchestrator.client.catalog import Catalogue
from soong.orchestrator.client.outcome import ExitCode
from soong.orchestrator.client.submission import Ids, Submission, submission
from soong.orchestrator.embedded.early_service import import_also
from soong.orchestrator.embedded.service_file import read_record
from soong.orchestrator.embedded.starter import Attachment, attach
from soong.shared.agents.acp_agents import acp_agent
from soong.shared.agents.model import SCRIPT, libraries_of, resolve_model
from soong.shared.core.clock import SystemClock
from soong.shared.core.config import load_config
from soong.shared.core.errors import UsageError
from soong.shared.core.settings import Settings, load_settings
from soong.shared.engine.sessions.session import ApprovalMode
from soong.shared.engine.tasks.new_tasks import models_of
from soong.shared.engine.tasks.plan.kinds.agent import parse_settings
from soong.shared.engine.tasks.plan.plan import ACP_PREFIX, Plan
from soong.shared.permissions.consent import Preview, StepGrant


def run_here(given: RunArguments, handed: Handed) -> int:
    """Run a plan as a client of its own and follow it to its end; return the exit code.

    ``handed`` is what has become of it at a service that was asked first: its ids, and whether it is written already.
    """
    most = given.max_concurrent
    settings = load_settings(
        model=given.model, workers=given.workers, slots=given.slots, max_concurrent_children_per_session=most
    )
    if handed.is_written:
        return asyncio.run(follow_written(settings, handed, is_json=given.is_json))
    catalogue = Catalogue.of(settings).at(given.project)
    inputs, modules = read_inputs(given.inputs), PlanModules(settings, catalogue, given.plan)
    settings = modules.added_to_settings(read := read_plan(given.plan, modules.names()))
    is_allowing = bool(given.allow or given.allowed_steps)
    mode = approval_mode(given.approvals, is_detached=given.is_detached, allows=is_allowing)
    prepared = submission(
        read,
        inputs,
        project=given.project,
        approval_mode=mode,
        model=settings.model,
        allow=given.allow,
        catalogue=catalogue,
        clock=SystemClock(),
        principal=settings.principal,
        step_grants=_grants(given, read, inputs, catalogue, settings),
        ids=Ids(handed.session_id, handed.task_id),
        budget=given.budget,
        settings=parse_settings(given.settings),
    )
    check_models(settings, models_of(read, settings.model))
    return asyncio.run(
        run_and_follow(settings, prepared, is_detached=given.is_detached, is_json=given.is_json, handed=handed)
    )


def _grants(
    given: RunArguments, plan: Plan, inputs: Mapping[str, str], catalogue: Catalogue, settings: Settings
) -> Sequence[StepGrant]:
    """Return what is consented to beforehand, step by step."""
    if not (given.is_previewed or given.allowed_steps):
        return ()
    from soong.orchestrator.client.preview import preview_of

    preview = preview_of(plan, inputs, project=given.project, allow=given.allow, catalogue=catalogue, settings=settings)
    return _consented(preview, given.allowed_steps, is_shown=given.is_previewed, is_json=given.is_json)


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
    """Check programs, packages and keys where the service that this command starts has this command's environment.

    Raises: InvalidConfigError.
    """
    record = read_record(settings.home) if settings.is_embedded else None
    if settings.is_embedded and (record is None or not record.is_process_alive):
        for name in filter(lambda one: one.startswith(ACP_PREFIX), names):
            acp_agent(name, load_config(settings.home)).program()
        checked = {name for name in names - {SCRIPT} if not name.startswith(ACP_PREFIX)}
        import_also([module for name in checked for module in libraries_of(name)])
        for name in checked:
            resolve_model(name)


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


async def run_and_follow(
    settings: Settings, prepared: Submission, *, is_detached: bool, is_json: bool, handed: Handed | None = None
) -> int:
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
    watch = Watch(client, attachment, interrupts, settings, is_json, is_new=True)
    try:
        keep_modules(settings, prepared.task)
        await client.submit(prepared.session, prepared.task, budget=prepared.budget)
        if is_detached:
            tell_detached(prepared.task.id, is_json=is_json)
            return 0
        say(f"task {prepared.task.id}: {visible(prepared.task.title)}")
        say_who_answers(prepared.session.approval_mode)
        if handed is not None:
            interrupts.hear(handed.signals.count)
        return await watch.follow(prepared.session, prepared.task.id)
    finally:
        await client.close()
        await watch.leave(wait=False)


async def follow_written(settings: Settings, handed: Handed, *, is_json: bool) -> int:
    """Follow a task that the service has written for this command; return the exit code."""
    interrupts = Interrupts()
    interrupts.listen()
    try:
        attachment = await attached(settings, interrupts)
    except InterruptedBeforeStartError:
        attachment = await attach(settings)  # what is written is paused, as after every interruption
    from soong.orchestrator.client.bootstrap import open_client

    client = await open_client(attachment.settings)
    watch = Watch(client, attachment, interrupts, settings, is_json, is_new=True)
    try:
        interrupts.hear(handed.signals.count)
        return await watch.follow(await client.store.sessions.session(handed.session_id), handed.task_id)
    finally:
        await client.close()
        await watch.leave(wait=False)


async def attached(settings: Settings, interrupts: Interrupts) -> Attachment:
    """Attach to a service, starting one if need be. Raises: InterruptedBeforeStartError; UnavailableError."""
    work = asyncio.create_task(attach(settings, tell=say, meanwhile=_import_client))
    return await interruptible(interrupts, work)


def _import_client() -> None:
    """Import SQLAlchemy and Redis on a thread while the service starts on other cores: half of a client's CPU."""
    module = "soong.orchestrator.client.bootstrap"
    threading.Thread(target=importlib.import_module, args=(module,), name="soong-import", daemon=True).start()
