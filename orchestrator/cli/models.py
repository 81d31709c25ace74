"""``soong models``: the pauses that providers ask for, shared by all processes of the deployment (DIS-12)."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import typer

from soong.orchestrator.cli.console import emit, output, say
from soong.orchestrator.cli.ids import deployment
from soong.shared.agents.pacing import Pauses
from soong.shared.core.errors import UsageError
from soong.shared.core.settings import load_settings

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None)


@app.callback()
def _group() -> None:
    """List the models whose provider asked for a pause; end a pause."""


@app.command()
def paused(*, is_json: bool = typer.Option(False, "--json", help="Print one JSON document.")) -> None:
    """List the models that agents wait for, and for how many seconds at most."""
    found = sorted(asyncio.run(_paused()).items())
    if is_json:
        emit({"paused": [{"model": model, "seconds": round(left_s, 1)} for model, left_s in found]})
    else:
        output("\n".join(f"{model}  {left_s:,.0f} s" for model, left_s in found) or "no model is paused")


@app.command()
def resume(model: str = typer.Argument("", help="Name of the model; without it the pauses of all models.")) -> None:
    """End the pause of a model: agents that wait for it ask again within a second."""
    lifted = asyncio.run(_lift(model))
    if not lifted:
        raise UsageError(f"{model or 'no model'} is not paused; `soong models paused` lists the pauses")
    say(f"resumed {', '.join(lifted)}")


async def _paused() -> dict[str, float]:
    async with _opened() as pauses:
        return await pauses.paused()


async def _lift(model: str) -> list[str]:
    async with _opened() as pauses:
        return await pauses.lift(model)


@asynccontextmanager
async def _opened() -> AsyncIterator[Pauses]:
    from soong.orchestrator.client.bootstrap import opened_pauses

    settings = await deployment(load_settings())
    if not settings.redis_url:
        raise UsageError("no service runs in this home, so no model is paused")
    async with opened_pauses(settings) as pauses:
        yield pauses
