"""``soong usage`` and ``soong budget``: what agents have used, and what a session or the day may use (DIS-11)."""

import asyncio
import time
from collections.abc import Iterator

import typer

from soong.orchestrator.approvals.approval import check_person_now
from soong.orchestrator.cli.api import Api
from soong.orchestrator.cli.console import emit, output, say, table
from soong.orchestrator.cli.ids import opened_store
from soong.orchestrator.cli.options import JSON
from soong.orchestrator.cli.step_words import Document
from soong.orchestrator.operations.ids import find_session
from soong.shared.core.amounts import read_age
from soong.shared.core.clock import utc_date
from soong.shared.core.errors import UsageError
from soong.shared.core.settings import load_settings
from soong.shared.engine.runs.budgets import DAY, Budget, BudgetState, parse_budget, session_scope, state_json, usd_text
from soong.shared.engine.runs.record import UsageBy


def command(
    *,
    by: UsageBy = typer.Option(UsageBy.DAY, "--by", help="What to add up by: day, session, task, agent or model."),
    since: str = typer.Option("", "--since", metavar="AGE", help="Only runs made in this time: 12h, 30d."),
    session: str = typer.Option("", "--session", metavar="ID", help="Only the runs of this session."),
    is_json: bool = JSON,
) -> None:
    """Show what the runs of agents that have ended have used."""
    if since:
        read_age(since, "--since")
    with Api() as api:
        used = api.get("/v1/usage", by=str(by), since=since or "all", session=session)
    for line in _left_out(used):
        say(line)
    if is_json:
        emit(used["items"])
        return
    if not used["items"]:
        output("no agent has used a model yet")
        return
    heads = (str(by), "runs", "requests", "input tokens", "cached", "output tokens", "tool calls", "cost")
    output(table(heads, [_row(one) for one in used["items"]]))


def _left_out(used: Document) -> Iterator[str]:
    if used["open_runs"]:
        yield f"not counted: {used['open_runs']:,} runs under way or parked"
    if used["lost_requests"]:
        number, estimate = used["lost_requests"], f"{used['lost_tokens']:,} tokens, {used['lost_cost_usd']} USD"
        yield f"in addition, estimated: {number:,} requests whose process died or was cancelled: {estimate}"
    if used["left_out"]:
        yield f"not shown: {used['left_out']:,} smaller sums"


def _row(one: Document) -> tuple[str, ...]:
    names = ("runs", "requests", "input_tokens", "cached_tokens", "output_tokens", "tool_calls")
    return (one["key"], *(f"{one[name]:,}" for name in names), _cost(one))


def _cost(one: Document) -> str:
    """Return the cost; runs without a known price are named, because unknown is not zero."""
    unpriced = one["unpriced_runs"]
    known = f"${float(one['cost_usd']):.4f}" if unpriced < one["runs"] else ""
    unknown = f"{unpriced} runs without a known price" if unpriced else ""
    return ", ".join(filter(None, (known, unknown)))


def budget(
    session: str = typer.Argument("", help="Id of the session or of a task of it, or a unique part [the day]."),
    *,
    limits: list[str] = typer.Option(
        [], "--set", metavar="LIMIT", help="Let the session use this in all from now on: 5usd, 1mtok, or both."
    ),
    is_json: bool = JSON,
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
        output(_budget_text(state))


async def _state(session: str, budget: Budget) -> BudgetState | None:
    async with opened_store(load_settings()) as store:
        scope = session_scope(await find_session(store, session)) if session else DAY
        if not budget.is_unlimited:
            await store.budgets.set_budget(scope, budget)
        found = await store.budgets.budgets([scope], day=utc_date(time.time_ns() // 1000))
    return found.get(scope)


def _budget_text(state: BudgetState) -> str:
    money = [
        ("-" if one.microusd is None else usd_text(one.microusd)) for one in (state.used, state.reserved, state.budget)
    ]
    tokens = [_count(one.tokens) for one in (state.used, state.reserved, state.budget)]
    return table(("", "used", "reserved", "limit"), [("US dollars", *money), ("tokens", *tokens)])


def _count(tokens: int | None) -> str:
    return "-" if tokens is None else f"{tokens:,}"
