"""``soong ask``: gives an agent a goal and follows it to its answer."""

import asyncio
import sys
from pathlib import Path

import typer

from soong.orchestrator.approvals.approval import check_person_now
from soong.orchestrator.cli.options import (
    ALLOW,
    BUDGET,
    DETACH,
    MODEL,
    RESULT_AS_JSON,
    SETTING,
    SLOTS,
    WORKERS,
)
from soong.orchestrator.cli.plan_run import approval_mode, check_models, run_and_follow
from soong.orchestrator.client.catalog import Catalogue
from soong.orchestrator.client.client import Submission
from soong.orchestrator.client.submission import NextAsk, SessionTerms, ask_submission, follow_up
from soong.orchestrator.embedded.early_service import early_start
from soong.shared.core.clock import SystemClock
from soong.shared.core.errors import UsageError
from soong.shared.core.settings import Settings, load_settings
from soong.shared.core.worker_range import WorkerRange
from soong.shared.engine.sessions.session import ApprovalMode
from soong.shared.engine.tasks.plan.kinds.agent import parse_settings
from soong.shared.engine.tasks.plan.plan import ORCHESTRATOR


def command(
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
    settings = load_settings(model=model, workers=workers, slots=slots, max_concurrent_children_per_session=max_workers)
    if session and (project is not None or allow or approvals is not None):
        raise UsageError("--session continues with the folder and the rules of the session; leave out the others")
    text = sys.stdin.read() if goal == "-" else goal
    with early_start(settings.home, is_wanted=settings.is_embedded):
        if session:
            ask = NextAsk(text, agent, model or "", budget, parse_settings(setting))
            prepared = asyncio.run(_follow_up(settings, ask, session))
        else:
            terms = SessionTerms(
                project=project or Path(),
                approval_mode=approval_mode(approvals, is_detached=detach, allows=bool(allow)),
                model=settings.model,
                allow=allow,
                principal=settings.principal,
                budget=budget,
                settings=parse_settings(setting),
            )
            prepared = ask_submission(text, agent or ORCHESTRATOR, terms, Catalogue.of(settings), SystemClock())
        check_models(settings, frozenset({prepared.task.root_run.identity.model}))
        raise typer.Exit(asyncio.run(run_and_follow(settings, prepared, is_detached=detach, is_json=is_json)))


async def _follow_up(settings: Settings, ask: NextAsk, session: str) -> Submission:
    """Return another goal for a session, with the conversation of its last ask."""
    from soong.orchestrator.cli.ids import opened_store  # late: SQLAlchemy
    from soong.orchestrator.operations.ids import last_ask

    async with opened_store(settings) as store:
        # Looked up before a service is started for it: a wrong id starts nothing.
        former = await last_ask(store, session)
        root, row = await store.runs.run(former.root_run_id), await store.sessions.session(former.session_id)
    if ask.budget:
        check_person_now("change a budget")
    return follow_up(ask, row, root, Catalogue.of(settings), SystemClock())
