"""The commands on workers (DIS-04), limits on what runs at once (DIS-03), pauses of models (DIS-12), project folders.

A limit counts live leases while the row of its scope is locked, so however many workers claim, it holds.
"""

import asyncio
import os
import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import typer

from soong.orchestrator.cli.api import Api
from soong.orchestrator.cli.console import emit, one_line, output, say, table
from soong.orchestrator.cli.ids import deployment, opened_store
from soong.orchestrator.cli.options import JSON
from soong.orchestrator.cli.step_words import Document
from soong.orchestrator.embedded.folders import child_environment, kept_command, module_command
from soong.orchestrator.embedded.starter import living_service
from soong.orchestrator.schemas.worker import LimitSchema
from soong.shared.agents.pacing import Pauses
from soong.shared.core.errors import UnavailableError, UsageError
from soong.shared.core.open_files import raise_open_files
from soong.shared.core.settings import Settings, load_settings
from soong.shared.engine.tasks.functions import suggestion
from soong.shared.engine.tasks.metrics import LimitUsage
from soong.shared.engine.tasks.step import LIMIT_KINDS, ConcurrencyLimit

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None)

SCOPE_HELP = "pool:NAME, model:NAME, definition:NAME (python:FUNCTION for a python step) or session:ID."


@app.command("list")
def list_command(*, is_json: bool = JSON) -> None:
    """List the workers that are not gone, with what each holds, and the queues that they serve."""
    view = _view()
    emit(view) if is_json else output(text_of(view))


@app.command()
def check(*, host: str = typer.Option("", "--host", help="Another host than this one.")) -> None:
    """Succeed when a worker of this host lives: for a container's health check.

    A worker that stalls is declared gone by the orchestrators within the lease, and is then no longer found here.
    """
    wanted = host or socket.gethostname()
    found = [worker for worker in _view()["workers"] if worker["host"] == wanted]
    if not any(worker["state"] in {"live", "draining"} for worker in found):
        raise UnavailableError(f"no live worker on host {wanted!r}")
    say(f"{len(found)} workers of {wanted} live")


def text_of(view: Document) -> str:
    """Return the list as people read it."""
    if not view["workers"]:
        workers = "no worker lives; start one with `soong worker`, or the service with `soong up`"
    else:
        heads = ("worker", "host", "state", "used", "pools", "labels", "version", "beats")
        workers = table(heads, [_row(one) for one in view["workers"]])
    waiting = [(one["pool"], str(one["waiting"]), str(one["free_slots"])) for one in view["pools"]]
    held = [(run, worker["name"]) for worker in view["workers"] for run in worker["runs"]]
    rows = [(run["run"], run["step"].partition("/")[2], run["title"], name) for run, name in held]
    unended = [one_line(run["unended"], 0) for run, _ in held if run["unended"]]
    used = [(bound["scope"], f"{bound['used']}/{bound['limit']}") for bound in view["limits"]]
    parts = [
        workers,
        table(("queue", "waiting", "free slots"), waiting) if waiting else "",
        table(("limit", "used"), used) if used else "",
        table(("run", "step", "title", "worker"), rows) if rows else "",
        "\n".join(unended),
        *_parked(view["parked"]),
    ]
    return "\n\n".join(part for part in parts if part)


def _parked(number: int) -> list[str]:
    if not number:
        return []
    runs = "1 run is parked and holds" if number == 1 else f"{number} runs are parked and hold"
    return [f"{runs} no slot while waiting for consent; see `soong approvals list`"]


def limits_text(concurrency_limits: Sequence[LimitUsage]) -> str:
    """Return the limits and how far each is used."""
    return table(("limit", "used"), [(bound.scope, f"{bound.used}/{bound.limit}") for bound in concurrency_limits])


def _row(worker: Document) -> tuple[str, ...]:
    return (
        worker["name"],
        worker["host"],
        worker["state"],
        f"{worker['used']}/{worker['slots']}",
        ",".join(worker["pools"]),
        ",".join(worker["labels"]) or "-",
        f"{worker['version'] or '?'} (protocol {worker['protocol']})",
        str(worker["beats"]),
    )


def _view() -> Document:
    with Api() as api:
        return api.get("/v1/workers")


limits = typer.Typer(no_args_is_help=True, rich_markup_mode=None)


@limits.command("list")
def list_limits(*, is_json: bool = JSON) -> None:
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


@limits.command("set")
def set_command(
    scope: str = typer.Argument(..., help=SCOPE_HELP),
    limit: int = typer.Argument(..., min=1, help="Maximum number of steps running at once."),
) -> None:
    """Set a limit, or change it. What runs beyond it already ends; the next claims keep to it."""
    asyncio.run(_set(load_settings(), ConcurrencyLimit(checked_scope(scope), limit)))
    say(f"at most {limit} steps of {scope} at once")


@limits.command()
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


models = typer.Typer(no_args_is_help=True, rich_markup_mode=None)


@models.command()
def paused(*, is_json: bool = JSON) -> None:
    """List the models that agents wait for, and for how many seconds at most."""
    found = sorted(asyncio.run(_paused()).items())
    if is_json:
        emit({"paused": [{"model": model, "seconds": round(left_s, 1)} for model, left_s in found]})
    else:
        output("\n".join(f"{model}  {left_s:,.0f} s" for model, left_s in found) or "no model is paused")


@models.command()
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


def worker(
    *,
    name: str = typer.Option("", "--name", help="Node name before the @, as Flower shows it."),
    slots: int | None = typer.Option(None, "--slots", min=1, help="Runs held at once [SOONG_SLOTS]."),
    pools: str | None = typer.Option(None, "--pools", help="Pools it serves, comma separated [SOONG_POOLS]."),
    labels: str | None = typer.Option(None, "--labels", help="What it announces, comma separated [SOONG_LABELS]."),
    functions: str | None = typer.Option(
        None, "--functions", help="Modules that register step functions [SOONG_FUNCTIONS]."
    ),
) -> None:
    """Claim and run steps until stopped; then finish or release the running ones."""
    raise_open_files()
    settings = asyncio.run(_deployment(load_settings()))
    given = {"--name": name, "--slots": slots, "--pools": pools, "--labels": labels, "--functions": functions}
    options = [part for option, value in given.items() if value for part in (option, str(value))]
    argv = kept_command(module_command("soong.worker", *options))
    # This process becomes the worker's subreaper, which forwards signals and ends as the worker does.
    os.execve(argv[0], argv, child_environment(settings))  # noqa: S606  # an argv, no shell


async def _deployment(settings: Settings) -> Settings:
    if settings.redis_url and settings.database_url:
        return settings
    record = await living_service(settings)
    if record is None:
        raise UsageError(
            "there is no service to join: start one with `soong up`, or set SOONG_DATABASE_URL and SOONG_REDIS_URL"
        )
    return settings.model_copy(update={"redis_url": record.redis_url})


projects = typer.Typer(no_args_is_help=True, rich_markup_mode=None)


@projects.command()
def mark(folder: Path = typer.Argument(Path(), help="The project's folder.")) -> None:
    """Mark a folder as a project and print its id.

    From then on steps that work in it are taken by those workers only that have the folder at the same path, with the
    same mark, and say so (SOONG_PROJECTS). A service on one machine needs no mark and asks for none.
    """
    from soong.orchestrator.client.submission import existing_folder
    from soong.shared.sandbox.marked_project import mark_project

    place = existing_folder(folder)
    output(mark_project(place))
    say(f"workers that have it are started with SOONG_PROJECTS={os.fspath(place)}")
