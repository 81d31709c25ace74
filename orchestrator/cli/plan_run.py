"""A plan run by a client of its own: of a living service, of an ephemeral one that it starts, or of a deployment."""

import asyncio
import importlib
import os
import sys
import termios
import threading
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Final

import typer
from msgspec.structs import replace

from soong.orchestrator.approvals.approval import check_person_now
from soong.orchestrator.cli.console import emit, output, say, spelled_out, visible, why_nobody_is_asked
from soong.orchestrator.cli.plan_modules import PlanModules, keep_modules, read_plan
from soong.orchestrator.cli.service_run import Handed, RunArguments, read_inputs, say_who_answers, tell_detached
from soong.orchestrator.cli.watch import InterruptedBeforeStartError, Interrupts, Watch, interruptible
from soong.orchestrator.client.catalog import Catalogue
from soong.orchestrator.client.client import Submission
from soong.orchestrator.client.explanation import preview_of
from soong.orchestrator.client.outcome import ExitCode
from soong.orchestrator.client.submission import Ids, SessionTerms, new_ids, submission
from soong.orchestrator.embedded.early_service import import_also
from soong.orchestrator.embedded.service_file import read_record
from soong.orchestrator.embedded.starter import attach
from soong.shared.agents.acp_agents import acp_agent
from soong.shared.agents.model import SCRIPT, libraries_of, resolve_model
from soong.shared.core.clock import SystemClock
from soong.shared.core.config import load_config
from soong.shared.core.errors import UsageError
from soong.shared.core.settings import Settings, load_settings
from soong.shared.engine.sessions.session import ApprovalMode
from soong.shared.engine.tasks.new_tasks import models_of
from soong.shared.engine.tasks.plan.kinds.agent import parse_settings
from soong.shared.engine.tasks.plan.plan import ACP_PREFIX
from soong.shared.permissions.consent import CheckedPermission, PermissionKind, Preview, StepGrant, StepPreview
from soong.shared.permissions.rules import Effect

ALLOW: Final = frozenset({"1", "a", "y", "yes", "allow"})
LATER: Final = frozenset({"2", "l", "n", "no", "later", "ask"})
STOP: Final = frozenset({"3", "s", "q", "stop", "quit"})


def run_here(given: RunArguments, handed: Handed) -> int:
    """Run a plan as a client of its own and follow it to its end; return the exit code.

    ``handed`` is what has become of it at a service that was asked first: its ids, and whether it is written already.
    """
    most = given.max_concurrent
    settings = load_settings(
        model=given.model, workers=given.workers, slots=given.slots, max_concurrent_children_per_session=most
    )
    if handed.task_id:
        return asyncio.run(follow_written(settings, handed, is_json=given.is_json))
    catalogue = Catalogue.of(settings).at(given.project)
    inputs, modules = read_inputs(given.inputs), PlanModules(settings, catalogue, given.plan)
    settings = modules.added_to_settings(read := read_plan(given.plan, modules.names()))
    is_allowing = bool(given.allow or given.allowed_steps)
    mode = approval_mode(given.approvals, is_detached=given.is_detached, allows=is_allowing)
    terms = SessionTerms(
        project=given.project,
        approval_mode=mode,
        model=settings.model,
        allow=given.allow,
        principal=settings.principal,
        ids=_ids_of(handed, settings),
        budget=given.budget,
        settings=parse_settings(given.settings),
        max_concurrent=given.max_concurrent or 0,
    )
    if given.is_previewed or given.allowed_steps:
        preview = preview_of(read, inputs, terms, catalogue, settings)
        terms = replace(terms, step_grants=_consented(preview, given))
    prepared = submission(read, inputs, terms, catalogue, SystemClock())
    check_models(settings, models_of(read, settings.model))
    return asyncio.run(
        run_and_follow(settings, prepared, is_detached=given.is_detached, is_json=given.is_json, handed=handed)
    )


def _ids_of(handed: Handed, settings: Settings) -> Ids:
    """Return the ids of what a service may have written without being able to say so; else new ones."""
    if handed.body is None:
        return new_ids()
    from soong.orchestrator.operations.submissions import SubmissionBody, ids_of

    return ids_of(handed.key, settings.principal, SubmissionBody.model_validate(handed.body))


def _consented(preview: Preview, given: RunArguments) -> Sequence[StepGrant]:
    """Return what is consented to step by step; end here when nothing is to be run."""
    try:
        grants = consented(preview, given.allowed_steps, is_shown=given.is_previewed, is_json=given.is_json)
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
    async with watching(settings, is_json=is_json, is_new=True) as watch:
        keep_modules(settings, prepared.task)
        await watch.client.submit(prepared)
        if is_detached:
            tell_detached(prepared.task.id, is_json=is_json)
            return 0
        say(f"task {prepared.task.id}: {visible(prepared.task.title)}")
        say_who_answers(prepared.session.approval_mode)
        if handed is not None:
            watch.interrupts.hear(handed.signals.count)
        return await watch.follow(prepared.session, prepared.task.id)


async def follow_written(settings: Settings, handed: Handed, *, is_json: bool) -> int:
    """Follow a task that the service has written for this command; return the exit code."""
    async with watching(settings, is_json=is_json, is_new=True, is_written=True) as watch:
        watch.interrupts.hear(handed.signals.count)
        store = watch.client.store
        session_id = (await store.tasks.task(handed.task_id)).session_id
        return await watch.follow(await store.sessions.session(session_id), handed.task_id)


@asynccontextmanager
async def watching(
    settings: Settings, *, is_json: bool, is_new: bool = False, is_written: bool = False
) -> AsyncIterator[Watch]:
    """Attach to a service, starting one if need be, and let go of it at the end.

    An interruption before that ends the command, unless its task ``is_written``: then it is paused, as later.

    Raises: typer.Exit; UnavailableError.
    """
    interrupts = Interrupts()
    interrupts.listen()
    try:
        work = asyncio.create_task(attach(settings, tell=say, meanwhile=_import_client))
        attachment = await interruptible(interrupts, work)
    except InterruptedBeforeStartError:
        if not is_written:
            say("\ninterrupted before anything was started")
            raise typer.Exit(ExitCode.INTERRUPTED) from None
        attachment = await attach(settings)
    from soong.orchestrator.client.bootstrap import open_client

    client = await open_client(attachment.settings)
    watch = Watch(client, attachment, interrupts, settings, is_json, is_new)
    try:
        yield watch
    finally:
        await client.close()
        await watch.leave(wait=False)


def _import_client() -> None:
    """Import SQLAlchemy and Redis on a thread while the service starts on other cores: half of a client's CPU."""
    module = "soong.orchestrator.client.bootstrap"
    threading.Thread(target=importlib.import_module, args=(module,), name="soong-import", daemon=True).start()


class PreviewStoppedError(Exception):
    """The person at the terminal wants nothing to be started."""


def consented(
    preview: Preview, allowed: Sequence[str], *, is_shown: bool, is_json: bool
) -> tuple[StepGrant, ...] | None:
    """Return what is consented to; None when the preview was all that was wanted.

    ``allowed`` are steps consented to on the command line. Without a terminal the preview is printed, and only what
    it shows is granted.

    Raises:
        UsageError: a step of ``allowed`` is not there, or nothing of it can be allowed.
        PreviewStoppedError: the person said so, or standard input ended.
    """
    grants = preview.grants(allowed)
    if not is_shown:
        return grants
    if not is_json and not why_nobody_is_asked():
        output(preview_text(preview))
        return (*grants, *_asked(preview, frozenset(allowed)))
    if allowed:
        say(preview_text(preview))
        return grants
    emit(preview.as_json()) if is_json else output(preview_text(preview))
    return None


def preview_text(preview: Preview) -> str:
    """Return the preview for people: the union first, then what else each step can ask."""
    lines = [f"preview: {spelled_out(preview.title)}", ""]
    for kind in PermissionKind:
        lines += _rows_table(preview.union(kind), str(kind))
    if len(lines) == 2:
        lines.append("no step says what it will ask for (`permissions:` in the plan)")
    silent = [step for step in preview.steps if step.may_ask]
    if silent:
        lines += ["", "may also ask when they run:"]
        width = max(len(spelled_out(step.step_id)) for step in silent)
        lines += [
            f"  {spelled_out(step.step_id):<{width}}  {', '.join(map(spelled_out, step.may_ask))}" for step in silent
        ]
    return os.linesep.join(lines)


def _asked(preview: Preview, settled: frozenset[str]) -> Iterator[StepGrant]:
    """Ask once for each step of which something can be allowed; where there is none, whether to begin at all."""
    open_steps = [step for step in preview.steps if step.grantable and step.step_id not in settled]
    for position, step in enumerate(open_steps, 1):
        output(_question(step, position, len(open_steps)))
        if _choice("  [1] allow this for the step  [2] ask when it runs  [3] stop") == "allow":
            yield step.grant
    if not open_steps and _choice("  nothing is to be allowed beforehand: [1] run it  [3] stop") != "allow":
        raise PreviewStoppedError


def _question(step: StepPreview, position: int, count: int) -> str:
    head = f"step {spelled_out(step.step_id)} ({position} of {count})"
    title = "" if step.title in ("", step.step_id) else f": {spelled_out(step.title)}"
    whose = ", each of its items too" if step.kind == "map" else ""
    rows = [
        row
        for kind in PermissionKind
        for row in _rows_table([asked for asked in step.permissions if asked.kind is kind], str(kind))
    ]
    return os.linesep.join(["", f"{head}{title}{whose}", *rows])


def _rows_table(asks: Sequence[CheckedPermission], head: str) -> list[str]:
    shown = [(spelled_out(asked.shown or asked.given), asked) for asked in asks]
    width = max((len(text) for text, _ in shown), default=0)
    return [
        f"  {head if place == 0 else '':<6} {text:<{min(width, 60)}}  {_outcome(asked)}"
        for place, (text, asked) in enumerate(shown)
    ]


def _outcome(asked: CheckedPermission) -> str:
    where = " (outside the write roots)" if asked.is_outside else ""
    why = spelled_out(asked.reason)
    match asked.effect:
        case Effect.ALLOW:
            return f"runs without asking{where}"
        case Effect.DENY:
            return f"refused{where}: {why}"
        case Effect.ASK if asked.scope is None:
            return f"asks when it runs{where}: {why}"
        case Effect.ASK:
            return f"asks; can be allowed now for {', '.join(map(spelled_out, asked.grantable))}{where}: {why}"


def _choice(question: str) -> str:
    while True:
        output(question)
        with suppress(termios.error):
            # What was typed before was not typed at this; what is typed once the mark stands counts.
            termios.tcflush(sys.stdin.fileno(), termios.TCIFLUSH)
        output("  > ", end="")
        line = sys.stdin.readline()
        word = line.strip().lower()
        if not line or word in STOP:
            raise PreviewStoppedError
        if word in ALLOW:
            return "allow"
        if word in LATER:
            return "later"
