"""``soong run``: by the running service of the home where that can do it, else by a client of its own.

What a client needs is imported only where there has to be one: see :mod:`soong.orchestrator.cli.service_run`.
"""

from pathlib import Path
from typing import Final

import typer

from soong.orchestrator.cli.run_arguments import RunArguments
from soong.orchestrator.cli.service_run import hand_over, service_home
from soong.orchestrator.cli.worker_option import workers_option
from soong.orchestrator.embedded.early_service import early_start
from soong.shared.core.worker_range import WorkerRange
from soong.shared.engine.sessions.session import ApprovalMode

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
    workers: WorkerRange | None = workers_option("Workers of a service started for this."),
    slots: int | None = typer.Option(None, "--slots", min=1, help="Slots of each of those workers."),
    max_concurrent: int | None = typer.Option(
        None, "--max-concurrent", min=1, help="Most of its steps at once [SOONG_MAX_CONCURRENT_CHILDREN_PER_SESSION]."
    ),
) -> None:
    """Run a plan and follow it to its end."""
    arguments = RunArguments(
        plan=plan,
        project=project,
        inputs=given,
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
    handed = hand_over(arguments)
    if handed.exit_code is not None:
        raise typer.Exit(handed.exit_code)
    with early_start(service_home()):
        from soong.orchestrator.cli.plan_run import run_here

        code = run_here(arguments, handed)
    raise typer.Exit(code)
