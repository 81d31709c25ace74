"""``soong run``: a plan submitted to the service and followed to its end.

A plan is checked here only where a service has to be started for it, and where it names modules next to its file: what
that takes is imported then.
"""

import asyncio
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

import typer

from soong.orchestrator.cli.options import (
    ALLOW,
    BUDGET,
    DETACH,
    INPUT,
    MODEL,
    RESULT_AS_JSON,
    SETTING,
    SLOTS,
    TAGS,
    WORKERS,
    pairs_of,
)
from soong.orchestrator.cli.submitting import approval_mode, check_models, submit
from soong.orchestrator.client.home_api import Document
from soong.orchestrator.client.program import existing_folder
from soong.orchestrator.terminal.api import Api, variable
from soong.orchestrator.terminal.console import say
from soong.orchestrator.terminal.watch import EXIT_INTERRUPTED
from soong.shared.core.amounts import WorkerRange
from soong.shared.core.errors import UsageError
from soong.shared.core.value import Value
from soong.shared.engine.sessions.session import ApprovalMode
from soong.shared.engine.tasks.problems import MAX_CHARS

if TYPE_CHECKING:
    from soong.orchestrator.client.catalog import Catalogue
    from soong.orchestrator.client.plan_modules import PlanModules
    from soong.shared.core.jsontext import JsonObject
    from soong.shared.core.settings import Settings
    from soong.shared.engine.tasks.plan.plan import Plan
    from soong.shared.permissions.consent import Preview, StepGrant


ORCHESTRATOR: Final = "orchestrator"


def command(
    plan: Path = typer.Argument(..., help="The plan: a YAML, JSON or Python file (FILE.py:NAME), or -."),
    *,
    project: Path = typer.Option(Path(), "--project", help="Folder that the steps work in."),
    inputs: list[str] = INPUT,
    model: str | None = typer.Option(None, "--model", help="Default model of agent steps [SOONG_MODEL]."),
    setting: list[str] = SETTING,
    allow: list[str] = ALLOW,
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
    detach: bool = DETACH,
    budget: list[str] = BUDGET,
    tags: list[str] = TAGS,
    is_json: bool = RESULT_AS_JSON,
    workers: WorkerRange | None = WORKERS,
    slots: int | None = SLOTS,
    max_concurrent: int | None = typer.Option(
        None, "--max-concurrent", min=1, help="Most of its steps at once [SOONG_MAX_CONCURRENT_CHILDREN_PER_SESSION]."
    ),
) -> None:
    """Run a plan and follow it to its end."""
    raise typer.Exit(run_plan(RunArguments(**locals())))


class RunArguments(Value):
    """The command line of `soong run`, by the names of its parameters. ``plan`` is a file, or ``-``."""

    plan: Path
    project: Path
    inputs: Sequence[str]
    model: str | None
    setting: Sequence[str]
    allow: Sequence[str]
    budget: Sequence[str]
    is_json: bool
    tags: Sequence[str] = ()
    is_previewed: bool = False
    allowed_steps: Sequence[str] = ()
    approvals: ApprovalMode | None = None
    detach: bool = False
    workers: WorkerRange | None = None
    slots: int | None = None
    max_concurrent: int | None = None


def run_plan(given: RunArguments) -> int:
    """Run a plan and follow it to its end; return the exit code."""
    body = _body(given)
    checked = _LocalPlan(given, body)
    if not body["plan"]:
        body["plan"] = checked.document
    if given.is_previewed or given.allowed_steps:
        grants = _consented(given, checked)
        body["step_grants"] = [{"step": grant.step_id, "grant_digest": grant.digest} for grant in grants]
    is_possible = isinstance(body["plan"], dict) or any(word in body["plan"] for word in ("modules", "celery"))
    has_modules = bool(variable("SOONG_FUNCTIONS")) or (is_possible and bool(checked.plan.modules))
    if has_modules:
        body["versions"] = checked.versions
    keep = checked.keep_modules if has_modules else None
    is_detached, is_json = given.detach, given.is_json
    wanted = submit(
        "/v1/tasks", body, lambda: checked.settings, is_detached=is_detached, is_json=is_json, before_written=keep
    )
    return asyncio.run(wanted)


def _body(given: RunArguments) -> Document:
    """Return what is sent. Raises: UsageError, StartedByRunError."""
    inputs = pairs_of(given.inputs, "--input", "such as --input glob=*.py")
    allows = bool(given.allow or given.allowed_steps)
    return {
        "plan": _plan_text(given.plan),
        "source": "<stdin>" if str(given.plan) == "-" else str(given.plan),
        "inputs": inputs,
        "project": str(existing_folder(given.project)),
        "cwd": str(Path.cwd()),
        "approval_mode": str(approval_mode(given.approvals, is_detached=given.detach, allows=allows)),
        "model": given.model or variable("SOONG_MODEL"),
        "settings": read_model_settings(given.setting),
        "allow": list(given.allow),
        "budget": ",".join(given.budget),
        "max_concurrent": given.max_concurrent or 0,
        "tags": list(given.tags),
    }


def _plan_text(plan: Path) -> str:
    """Return the text of a plan; that of one in Python is written later. Raises: UsageError, InvalidPlanError."""
    if plan.suffix.partition(":")[0] == ".py":
        return ""
    if str(plan) == "-":
        from soong.orchestrator.cli.plan_files import standard_input

        return standard_input()
    try:
        with plan.open(encoding="utf-8-sig") as opened:
            return opened.read(MAX_CHARS + 1)
    except (OSError, ValueError):
        from soong.shared.engine.tasks.plan.reader import load_plan

        load_plan(plan)  # says what is wrong with it
        raise


def read_model_settings(given: Sequence[str]) -> Document:
    """Read ``--setting`` words. Raises: UsageError."""
    if not given:
        return {}
    from soong.shared.engine.tasks.plan.agent_kind import parse_settings  # pydantic

    return dict(parse_settings(given))


@dataclass
class _LocalPlan:
    """The plan of a command as this process reads it, where it has to."""

    _given: RunArguments
    _body: Document

    @cached_property
    def _modules(self) -> "PlanModules":
        from soong.orchestrator.client.catalog import Catalogue
        from soong.orchestrator.client.plan_modules import PlanModules
        from soong.shared.core.settings import load_settings

        settings = load_settings(workers=self._given.workers, slots=self._given.slots)
        return PlanModules(settings, Catalogue.of(settings).at(Path(self._body["project"])), self._given.plan)

    @cached_property
    def _read(self) -> "tuple[Settings, Catalogue, Plan]":
        from soong.orchestrator.operations.submissions import read_plan

        catalogue = self._modules.known()
        plan = read_plan(self._body["plan"], catalogue, self._body["source"])
        return self._modules.added_to_settings(plan), catalogue, plan

    @property
    def document(self) -> "JsonObject":
        """That of a plan in Python. Raises: InvalidConfigError, InvalidPlanError."""
        return self._modules.document()

    @property
    def plan(self) -> "Plan":
        """Raises: InvalidPlanError."""
        return self._read[2]

    @cached_property
    def settings(self) -> "Settings":
        """With which a service is started for a plan that is good.
        Raises: UsageError, with everything that is wrong with the submission.
        """
        from soong.orchestrator.operations.preparation import prepared, prepared_here
        from soong.orchestrator.operations.submissions import SubmissionBody
        from soong.shared.engine.tasks.new_tasks import models_of

        settings, catalogue, plan = self._read
        body = SubmissionBody.model_construct(**{**self._body, "step_grants": ()})
        prepared_here(prepared, body, catalogue, settings)
        check_models(settings, models_of(plan, self._body["model"] or settings.model))
        return settings

    @property
    def preview(self) -> "Preview":
        """Raises: UsageError."""
        from soong.orchestrator.operations.problems import raised_as_ours
        from soong.orchestrator.operations.submissions import PreviewBody, previewed

        settings, catalogue, _ = self._read
        with raised_as_ours():
            return previewed(PreviewBody.model_construct(**self._body), catalogue, settings.of_user)

    @property
    def versions(self) -> dict[str, str]:
        """The versions of the plan's functions, as they were imported here."""
        from soong.shared.engine.tasks.functions import versions_of

        return versions_of([step.work.call for step in self.plan.steps])

    def keep_modules(self, key: str) -> None:
        from soong.orchestrator.embedded.own_modules import keep_modules
        from soong.orchestrator.operations.submissions import SubmissionBody, ids_of

        settings = self._read[0]
        keep_modules(settings, ids_of(key, settings.principal, SubmissionBody.model_construct(**self._body)).task)


def _consented(given: RunArguments, checked: _LocalPlan) -> "Sequence[StepGrant]":
    """Return what is consented to step by step; end here when nothing is to be run."""
    from soong.orchestrator.cli.permissions import PreviewStoppedError, consented

    try:
        grants = consented(checked.preview, given.allowed_steps, is_shown=given.is_previewed, is_json=given.is_json)
    except PreviewStoppedError:
        say("stopped before anything was started")
        raise typer.Exit(EXIT_INTERRUPTED) from None
    if grants is None:
        raise typer.Exit
    return grants


def ask(
    goal: str = typer.Argument(..., help="What the agent is to achieve, or - for standard input."),
    *,
    agent: str = typer.Option("", "--agent", help="The definition of the agent (`soong agents list`) [orchestrator]."),
    session: str = typer.Option(
        "", "--session", metavar="ID", help="Continue the conversation of a session (its id, or that of a task of it)."
    ),
    project: Path | None = typer.Option(None, "--project", help="Folder that the agents work in [.]."),
    model: str | None = MODEL,
    setting: list[str] = SETTING,
    allow: list[str] = ALLOW,
    approvals: ApprovalMode | None = typer.Option(
        None, "--approvals", help="prompt, inbox or deny, as for `soong run` [prompt in a terminal, else deny]."
    ),
    detach: bool = DETACH,
    budget: list[str] = BUDGET,
    tags: list[str] = TAGS,
    is_json: bool = RESULT_AS_JSON,
    workers: WorkerRange | None = WORKERS,
    slots: int | None = SLOTS,
    max_workers: int | None = typer.Option(
        None,
        "--max-workers",
        min=1,
        help="Most worker agents of it that run at once [SOONG_MAX_CONCURRENT_CHILDREN_PER_SESSION].",
    ),
) -> None:
    """Give an agent a goal: it plans, has workers do the work, and answers."""
    if session and (project is not None or allow or approvals is not None):
        raise UsageError("--session continues with the folder and the rules of the session; leave out the others")
    text = sys.stdin.read() if goal == "-" else goal
    if not text.strip():
        raise UsageError("the goal is empty; say what the agent is to achieve, in quotes")
    body: Document = {
        "goal": text,
        "agent": agent,
        "model": model or "",
        "settings": read_model_settings(setting),
        "budget": ",".join(budget),
        "max_concurrent": max_workers or 0,
        "tags": tags,
    }
    path = "/v1/asks"
    if session:
        path = f"/v1/sessions/{asyncio.run(_session_of(session, changes_budget=bool(budget)))}/asks"
    else:
        mode = approval_mode(approvals, is_detached=detach, allows=bool(allow))
        body |= _terms_of_ask(body, project or Path(), allow, mode)
    settings = partial(_settings_of_ask, {} if session else body, workers, slots)
    raise typer.Exit(asyncio.run(submit(path, body, settings, is_detached=detach, is_json=is_json)))


def _settings_of_ask(new: Document, workers: WorkerRange | None, slots: int | None) -> "Settings":
    """Return with what a service is started; a goal in a ``new`` session is checked first. Raises: SoongError."""
    from soong.orchestrator.client.catalog import Catalogue
    from soong.orchestrator.operations.preparation import prepared_ask, prepared_here
    from soong.orchestrator.operations.submissions import AskBody
    from soong.shared.core.settings import load_settings

    settings = load_settings(workers=workers, slots=slots)
    if new:
        ready = prepared_here(prepared_ask, AskBody.model_construct(**new), Catalogue.of(settings), settings)
        check_models(settings, frozenset({ready.task.root_run.identity.model}))
    return settings


def _terms_of_ask(body: Document, project: Path, allow: list[str], mode: ApprovalMode) -> Document:
    """Return what a goal in a session of its own has in addition. Raises: UsageError."""
    return {
        "agent": body["agent"] or ORCHESTRATOR,
        "model": body["model"] or variable("SOONG_MODEL"),
        "project": str(existing_folder(project)),
        "cwd": str(Path.cwd()),
        "allow": allow,
        "approval_mode": str(mode),
    }


async def _session_of(session: str, *, changes_budget: bool) -> str:
    """Return the id of a session whose conversation continues. Raises: NotFoundError, UsageError, StartedByRunError."""
    # Looked up before a service is started for it: a wrong id starts nothing.
    async with Api() as api:
        session_id = await api.find("session", session)
    if changes_budget:
        from soong.orchestrator.approvals.approval import check_person_now

        check_person_now("change a budget")
    return session_id
