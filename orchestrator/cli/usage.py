"""``soong usage`` and ``soong budget``: what agents have used, and what a session or the day may use (DIS-11)."""

from collections.abc import Callable, Iterator

import typer

from soong.orchestrator.cli.options import JSON
from soong.orchestrator.operations.administration import budget_of
from soong.orchestrator.terminal.api import Api
from soong.orchestrator.terminal.console import Columns, listed, say, show, table
from soong.orchestrator.terminal.summary import Document
from soong.shared.core.amounts import read_age
from soong.shared.core.errors import UsageError
from soong.shared.engine.runs.budgets import BudgetState, parse_budget, state_json, usd_text
from soong.shared.engine.runs.record import UsageBy


async def command(
    *,
    by: UsageBy = typer.Option(UsageBy.DAY, "--by", help="What to add up by: day, session, task, agent or model."),
    since: str = typer.Option("", "--since", metavar="AGE", help="Only runs made in this time: 12h, 30d."),
    session: str = typer.Option("", "--session", metavar="ID", help="Only the runs of this session."),
    is_json: bool = JSON,
) -> None:
    """Show what the runs of agents that have ended have used."""
    if since:
        read_age(since, "--since")
    async with Api() as api:
        used = await api.get("/v1/usage", by=str(by), since=since or "all", session=session)
    for line in _left_out(used):
        say(line)
    names = ("runs", "requests", "input_tokens", "cached_tokens", "output_tokens", "tool_calls")
    heads = {name: name.replace("cached_tokens", "cached").replace("_", " ") for name in names}
    columns: Columns = {str(by): "key", **{head: _number_in(name) for name, head in heads.items()}, "cost": _cost}
    listed(used["items"], columns, is_json=is_json, empty="no agent has used a model yet")


def _number_in(name: str) -> Callable[[Document], str]:
    return lambda one: f"{one[name]:,}"


def _left_out(used: Document) -> Iterator[str]:
    if used["open_runs"]:
        yield f"not counted: {used['open_runs']:,} runs under way or parked"
    if used["lost_requests"]:
        number, estimate = used["lost_requests"], f"{used['lost_tokens']:,} tokens, {used['lost_cost_usd']} USD"
        yield f"in addition, estimated: {number:,} requests whose process died or was cancelled: {estimate}"
    if used["left_out"]:
        yield f"not shown: {used['left_out']:,} smaller sums"


def _cost(one: Document) -> str:
    """Return the cost; runs without a known price are named, because unknown is not zero."""
    unpriced = one["unpriced_runs"]
    known = f"${float(one['cost_usd']):.4f}" if unpriced < one["runs"] else ""
    unknown = f"{unpriced} runs without a known price" if unpriced else ""
    return ", ".join(filter(None, (known, unknown)))


async def budget(
    session: str = typer.Argument("", help="Id of the session or of a task of it, or a unique part [the day]."),
    *,
    limits: list[str] = typer.Option(
        [], "--set", metavar="LIMIT", help="Let the session use this in all from now on: 5usd, 1mtok, or both."
    ),
    is_json: bool = JSON,
) -> None:
    """Show what a session, or all in a day, may use and has used; set it for a session."""
    limit = parse_budget(*limits)
    if limits:
        from soong.orchestrator.approvals.approval import check_person_now

        if not session:
            raise UsageError("the day's budget is `day` of [budgets] in config.toml; name a session to set its own")
        check_person_now("change a budget")
    state = await budget_of(session, limit)
    document = None if state is None else state_json(state)
    show(document, lambda: _budget_text(state), is_json=is_json)


def _budget_text(state: BudgetState | None) -> str:
    if state is None:
        return "there is no budget: any number of tokens and any sum may be used"
    money = [
        ("-" if one.microusd is None else usd_text(one.microusd)) for one in (state.used, state.reserved, state.budget)
    ]
    tokens = [("-" if one.tokens is None else f"{one.tokens:,}") for one in (state.used, state.reserved, state.budget)]
    return table(("", "used", "reserved", "limit"), [("US dollars", *money), ("tokens", *tokens)])
