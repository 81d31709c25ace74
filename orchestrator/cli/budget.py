"""``soong budget``: what a session, or the day, may use, and what of it is used (DIS-11)."""

import asyncio
import time

import typer

from soong.orchestrator.approvals.provenance import check_person_now
from soong.orchestrator.cli.console import emit, output, table
from soong.orchestrator.cli.ids import find_session, opened_store
from soong.shared.core.clock import utc_date
from soong.shared.core.errors import UsageError
from soong.shared.core.settings import load_settings
from soong.shared.engine.runs.budgets import DAY, Budget, BudgetState, parse_budget, session_scope, state_json, usd_text


def command(
    session: str = typer.Argument("", help="Id of the session or of a task of it, or a unique part [the day]."),
    *,
    limits: list[str] = typer.Option(
        [], "--set", metavar="LIMIT", help="Let the session use this in all from now on: 5usd, 1mtok, or both."
    ),
    is_json: bool = typer.Option(False, "--json", help="Print one JSON document."),
) -> None:
    """Show what a session, or all in a day, may use and has used; set it for a session."""
    budget = parse_budget(*limits)
    if limits:
        if not session:
            raise UsageError("the day's budget is `day` of [budgets] in config.toml; name a session to set its own")
        check_person_now("change a budget")
    state = asyncio.run(_state(session, budget))
    if is_json:
        emit(None if state is None else state_json(state))
    elif state is None:
        output("there is no budget: any number of tokens and any sum may be used")
    else:
        output(_text(state))


async def _state(session: str, budget: Budget) -> BudgetState | None:
    async with opened_store(load_settings()) as store:
        scope = session_scope(await find_session(store, session)) if session else DAY
        if not budget.is_unlimited:
            await store.budgets.set_budget(scope, budget)
        found = await store.budgets.budgets([scope], day=utc_date(time.time_ns() // 1000))
    return found.get(scope)


def _text(state: BudgetState) -> str:
    money = [_usd(one.microusd) for one in (state.used, state.reserved, state.budget)]
    tokens = [_count(one.tokens) for one in (state.used, state.reserved, state.budget)]
    return table(("", "used", "reserved", "limit"), [("US dollars", *money), ("tokens", *tokens)])


def _usd(microusd: int | None) -> str:
    return "-" if microusd is None else usd_text(microusd)


def _count(tokens: int | None) -> str:
    return "-" if tokens is None else f"{tokens:,}"
