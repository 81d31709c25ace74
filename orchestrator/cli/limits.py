"""``soong limits``: limits on what runs at once, over all workers of the deployment (DIS-03).

A concurrency limit counts live leases while its row is locked, so however many workers claim, it holds; what is
beyond it waits.
"""

import asyncio
from collections.abc import Sequence

import typer

from soong.orchestrator.cli.console import emit, output, say
from soong.orchestrator.cli.ids import opened_store
from soong.orchestrator.cli.workers import limits_text
from soong.orchestrator.schemas.worker import LimitSchema
from soong.shared.core.errors import UsageError
from soong.shared.core.settings import Settings, load_settings
from soong.shared.engine.tasks.functions import suggestion
from soong.shared.engine.tasks.metrics import LimitUsage
from soong.shared.engine.tasks.step import LIMIT_KINDS, ConcurrencyLimit

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None)

SCOPE_HELP = "pool:NAME, model:NAME, definition:NAME (python:FUNCTION for a python step) or session:ID."


@app.callback()
def _group() -> None:
    """Limit how much runs at once: by pool, model, agent definition or session."""


@app.command("list")
def list_command(*, is_json: bool = typer.Option(False, "--json", help="Print one JSON document.")) -> None:
    """List the limits and how far each is used; of sessions, those of sessions with open tasks."""
    concurrency_limits = asyncio.run(_concurrency_limits(load_settings()))
    if is_json:
        emit({"limits": [LimitSchema.of(bound).model_dump() for bound in concurrency_limits]})
    else:
        output(
            limits_text(concurrency_limits)
            if concurrency_limits
            else "nothing is limited; `soong limits set pool:default 8` limits a pool"
        )


@app.command("set")
def set_command(
    scope: str = typer.Argument(..., help=SCOPE_HELP),
    limit: int = typer.Argument(..., min=1, help="Maximum number of steps running at once."),
) -> None:
    """Set a limit, or change it. What runs beyond it already ends; the next claims keep to it."""
    asyncio.run(_set(load_settings(), ConcurrencyLimit(checked_scope(scope), limit)))
    say(f"at most {limit} steps of {scope} at once")


@app.command()
def remove(scope: str = typer.Argument(..., help=SCOPE_HELP)) -> None:
    """Remove a limit."""
    asyncio.run(_set(load_settings(), ConcurrencyLimit(checked_scope(scope), 0)))
    say(f"{scope} is not limited")


def checked_scope(text: str) -> str:
    """Return a scope as it is stored. Raises: UsageError."""
    kind, separator, name = text.partition(":")
    if kind not in LIMIT_KINDS or not separator or not name.strip():
        hint = suggestion(kind, frozenset(LIMIT_KINDS)) if kind not in LIMIT_KINDS else f"name one: {kind}:NAME"
        raise UsageError(f"{text!r} is not a scope of a concurrency limit; {hint}; a scope is {SCOPE_HELP}")
    return f"{kind}:{name.strip()}"


async def _set(settings: Settings, bound: ConcurrencyLimit) -> None:
    async with opened_store(settings) as store:
        kind, _, name = bound.scope.partition(":")
        if kind == "session" and bound.limit:
            await store.sessions.session(name)  # a limit of a session that is none would wait for nobody
        await store.claims.set_concurrency_limits([bound])


async def _concurrency_limits(settings: Settings) -> Sequence[LimitUsage]:
    from soong.orchestrator.client.bootstrap import opened_metrics

    async with opened_store(settings), opened_metrics(settings) as metrics:  # the store: its schema is checked
        return await metrics.concurrency_limits()
