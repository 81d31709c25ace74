"""``soong usage``: what agents have used, in requests, tokens and money."""

import asyncio
import time
from collections.abc import Iterator, Sequence

import typer

from soong.orchestrator.cli.console import emit, output, say, table
from soong.orchestrator.cli.ids import opened_store
from soong.orchestrator.client.usage import usage_totals
from soong.orchestrator.schemas.usage import UsageSum
from soong.shared.core.amounts import read_age
from soong.shared.core.settings import load_settings
from soong.shared.engine.runs.budgets import usd_text
from soong.shared.engine.runs.record import UnsummedUsage, UsageBy, UsageTotal


def command(
    *,
    by: UsageBy = typer.Option(UsageBy.DAY, "--by", help="What to add up by: day, session, task, agent or model."),
    since: str = typer.Option("", "--since", metavar="AGE", help="Only runs made in this time: 12h, 30d."),
    session: str = typer.Option("", "--session", metavar="ID", help="Only the runs of this session."),
    is_json: bool = typer.Option(False, "--json", help="Print one JSON document."),
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
