"""``soong usage`` and ``soong budget``: what agents have used, and what a session or the day may use (DIS-11)."""

import asyncio
import time
from collections.abc import Iterator, Sequence

import typer

from soong.orchestrator.approvals.provenance import check_person_now
from soong.orchestrator.cli.console import emit, output, say, table
from soong.orchestrator.cli.ids import opened_store
from soong.orchestrator.cli.options import JSON
from soong.orchestrator.client.workers import usage_totals
from soong.orchestrator.operations.ids import find_session
from soong.orchestrator.schemas.worker import UsageSum
from soong.shared.core.amounts import read_age
from soong.shared.core.clock import utc_date
from soong.shared.core.errors import UsageError
from soong.shared.core.settings import load_settings
from soong.shared.engine.runs.budgets import DAY, Budget, BudgetState, parse_budget, session_scope, state_json, usd_text
from soong.shared.engine.runs.record import UnsummedUsage, UsageBy, UsageTotal


def command(
    *,
    by: UsageBy = typer.Option(UsageBy.DAY, "--by", help="What to add up by: day, session, task, agent or model."),
    since: str = typer.Option("", "--since", metavar="AGE", help="Only runs made in this time: 12h, 30d."),
    session: str = typer.Option("", "--session", metavar="ID", help="Only the runs of this session."),
    is_json: bool = JSON,
) -> None:
    """Show what the runs of agents that have ended have used."""
    since_us = time.time_ns() // 1000 - read_age(since, "--since") * 1_000_000 if since else 0
    totals, unsummed = asyncio.run(_totals(by, since_us, session))
    for line in _left_out(unsummed):
        say(line)
    if is_json:
        emit([UsageSum.of(total).model_dump() for total in totals])
        return
    if not totals:
        output("no agent has used a model yet")
        return
    heads = (str(by), "runs", "requests", "input tokens", "cached", "output tokens", "tool calls", "cost")
    output(table(heads, [_row(total) for total in totals]))


async def _totals(by: UsageBy, since_us: int, session: str) -> tuple[Sequence[UsageTotal], UnsummedUsage]:
    async with opened_store(load_settings()) as store:
        totals = await usage_totals(store.runs, by, since_us=since_us, session_id=session)
        return totals, await store.runs.unsummed_usage(since_us=since_us, session_id=session)


def _left_out(one: UnsummedUsage) -> Iterator[str]:
    if one.open_runs:
        yield f"not counted: {one.open_runs:,} runs under way or parked"
    if one.lost_requests:
        estimate = f"{one.lost_tokens:,} tokens, {usd_text(one.lost_microusd)} USD"
        yield f"in addition, estimated: {one.lost_requests:,} requests whose process died or was cancelled: {estimate}"


def _row(total: UsageTotal) -> tuple[str, ...]:
    tokens = (total.input_tokens, total.cached_tokens, total.output_tokens)
    counts = (total.runs, total.requests, *tokens, total.tool_calls)
    return (total.key, *(f"{count:,}" for count in counts), _cost(total))


def _cost(total: UsageTotal) -> str:
    """Return the cost; runs without a known price are named, because unknown is not zero."""
    known = f"${total.cost_usd:.4f}" if total.unpriced < total.runs else ""
    unknown = f"{total.unpriced} runs without a known price" if total.unpriced else ""
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
