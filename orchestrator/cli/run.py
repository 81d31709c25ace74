"""``soong run``: by the running service of the home where that can do it, else by a client of its own.

What a client needs is imported only where there has to be one: see :mod:`soong.orchestrator.cli.service_run`.
"""

from pathlib import Path

import typer

from soong.orchestrator.cli.api import service_home
from soong.orchestrator.cli.options import (
    ALLOW,
    BUDGET,
    DETACH,
    INPUT,
    RESULT_AS_JSON,
    SETTING,
    SLOTS,
    WORKERS,
)
from soong.orchestrator.cli.service_run import RunArguments, hand_over
from soong.orchestrator.embedded.early_service import early_start
from soong.shared.core.worker_range import WorkerRange
from soong.shared.engine.sessions.session import ApprovalMode


def command(
    plan: Path = typer.Argument(..., help="The plan: a YAML or JSON file, or - for standard input."),
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
    is_json: bool = RESULT_AS_JSON,
    workers: WorkerRange | None = WORKERS,
    slots: int | None = SLOTS,
    max_concurrent: int | None = typer.Option(
        None, "--max-concurrent", min=1, help="Most of its steps at once [SOONG_MAX_CONCURRENT_CHILDREN_PER_SESSION]."
    ),
) -> None:
    """Run a plan and follow it to its end."""
    given = RunArguments(
        plan=plan,
        project=project,
        inputs=inputs,
        model=model,
        settings=setting,
        allow=allow,
        is_previewed=is_previewed,
        allowed_steps=allowed_steps,
        approvals=approvals,
        is_detached=detach,
        budget=budget,
        is_json=is_json,
        workers=workers,
        slots=slots,
        max_concurrent=max_concurrent,
    )
    raise typer.Exit(run_plan(given))


def run_plan(given: RunArguments) -> int:
    """Run a plan and follow it to its end; return the exit code."""
    handed = hand_over(given)
    if handed.exit_code is not None:
        return handed.exit_code
    with early_start(service_home()):
        from soong.orchestrator.cli.plan_run import run_here

        return run_here(given, handed)
