"""The commands on workers (DIS-04), limits on what runs at once (DIS-03), pauses of models (DIS-12), project folders.

A limit counts live leases while the row of its scope is locked, so however many workers claim, it holds.
"""

import asyncio
import os
import signal
import socket
import subprocess
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import typer

from soong.orchestrator.cli.options import JSON, CommandTable
from soong.orchestrator.operations.administration import limit_concurrency, opened_pauses
from soong.orchestrator.terminal.api import Api
from soong.orchestrator.terminal.console import Columns, one_line, output, say, show, table, table_of
from soong.orchestrator.terminal.summary import Document
from soong.shared.core import timing
from soong.shared.core.errors import UnavailableError, UsageError
from soong.shared.core.startup import raise_open_files
from soong.shared.engine.tasks.claims import SCOPE_HELP

app = CommandTable()


COLUMNS: Final[Columns] = {
    "worker": "name",
    "host": "host",
    "state": "state",
    "used": lambda one: f"{one['used']}/{one['slots']}",
    "pools": lambda one: ",".join(one["pools"]),
    "labels": lambda one: ",".join(one["labels"]) or "-",
    "version": lambda one: f"{one['version'] or '?'} (protocol {one['protocol']})",
    "beats": "beats",
}


@app.command("list")
async def list_command(*, is_json: bool = JSON) -> None:
    """List the workers that are not gone, with what each holds, and the queues that they serve."""
    view = await _view()
    show(view, lambda: text_of(view), is_json=is_json)


@app.command()
async def check(*, host: str = typer.Option("", "--host", help="Another host than this one.")) -> None:
    """Succeed when a worker of this host lives: for a container's health check.

    A worker that stalls is declared gone by the orchestrators within the lease, and is then no longer found here.
    """
    wanted = host or socket.gethostname()
    found = [worker for worker in (await _view())["workers"] if worker["host"] == wanted]
    if not any(worker["state"] in {"live", "draining"} for worker in found):
        raise UnavailableError(f"no live worker on host {wanted!r}")
    say(f"{len(found)} workers of {wanted} live")


def text_of(view: Document) -> str:
    """Return the list as people read it."""
    if not view["workers"]:
        workers = "no worker lives; start one with `soong worker`, or the service with `soong up`"
    else:
        workers = table_of(view["workers"], COLUMNS)
    waiting = [(one["pool"], str(one["waiting"]), str(one["free_slots"])) for one in view["pools"]]
    held = [(run, worker["name"]) for worker in view["workers"] for run in worker["runs"]]
    rows = [(run["run"], run["step"].partition("/")[2], run["title"], name) for run, name in held]
    unended = [one_line(run["unended"], 0) for run, _ in held if run["unended"]]
    number = view["parked"]
    parked = "1 run is parked and holds" if number == 1 else f"{number} runs are parked and hold"
    parts = [
        workers,
        table(("queue", "waiting", "free slots"), waiting) if waiting else "",
        _limits_text(view["limits"]),
        table(("run", "step", "title", "worker"), rows) if rows else "",
        "\n".join(unended),
        f"{parked} no slot while waiting for consent; see `soong approvals list`" if view["parked"] else "",
    ]
    return "\n\n".join(part for part in parts if part)


def _limits_text(limits: Sequence[Document]) -> str:
    """Return the limits and how far each is used; empty where nothing is limited."""
    rows = [
        (one["scope"], f"{one['used']}/{one['limit'] or '-'}", "paused" if one["is_paused"] else "") for one in limits
    ]
    return table(("limit", "used", ""), rows) if rows else ""


async def _view() -> Document:
    async with Api() as api:
        return await api.get("/v1/workers")


limits = CommandTable()


@limits.command("list")
async def list_limits(*, is_json: bool = JSON) -> None:
    """List the limits and how far each is used; of sessions, those of sessions with open tasks."""
    found = (await _view())["limits"]
    show(
        {"limits": found},
        lambda: _limits_text(found) or "nothing is limited; `soong limits set pool:default 8` limits a pool",
        is_json=is_json,
    )


@limits.command("set")
async def set_command(
    scope: str = typer.Argument(..., help=SCOPE_HELP),
    limit: int = typer.Argument(..., min=1, help="Maximum number of steps running at once."),
) -> None:
    """Set a limit, or change it. Steps that exceed it already run to their end; the next claims keep to it."""
    await limit_concurrency(scope, limit)
    say(f"at most {limit} steps of {scope} at once")


@limits.command()
async def remove(scope: str = typer.Argument(..., help=SCOPE_HELP)) -> None:
    """Remove a limit."""
    await limit_concurrency(scope, 0)
    say(f"{scope} is not limited")


@limits.command("pause")
async def pause_scope(scope: str = typer.Argument(..., help=SCOPE_HELP)) -> None:
    """Let nothing of a pool or another scope start; what runs continues."""
    async with Api() as api:
        await api.post("/v1/limits/pause", {"scope": scope})
    say(f"nothing of {scope} starts; `soong limits resume {scope}` ends that")


@limits.command("resume")
async def resume_scope(scope: str = typer.Argument(..., help=SCOPE_HELP)) -> None:
    """Let what was paused start again, within its limit."""
    async with Api() as api:
        await api.post("/v1/limits/resume", {"scope": scope})
    say(f"{scope} continues")


models = CommandTable()


@models.command()
async def paused(*, is_json: bool = JSON) -> None:
    """List the models that agents wait for, and for how many seconds at most."""
    async with opened_pauses() as pauses:
        found = sorted((await pauses.paused()).items())
    show(
        {"paused": [{"model": model, "seconds": round(left_s, 1)} for model, left_s in found]},
        lambda: "\n".join(f"{model}  {left_s:,.0f} s" for model, left_s in found) or "no model is paused",
        is_json=is_json,
    )


@models.command()
async def resume(
    model: str = typer.Argument("", help="Name of the model; without it the pauses of all models."),
) -> None:
    """End the pause of a model: agents that wait for it ask again within a second."""
    async with opened_pauses() as pauses:
        lifted = await pauses.lift(model)
    if not lifted:
        raise UsageError(f"{model or 'no model'} is not paused; `soong models paused` lists the pauses")
    say(f"resumed {', '.join(lifted)}")


def worker(
    *,
    name: str = typer.Option("", "--name", help="Node name before the @, as Flower shows it."),
    slots: int | None = typer.Option(None, "--slots", min=1, help="Runs held at once [SOONG_SLOTS]."),
    pools: str | None = typer.Option(None, "--pools", help="Pools it serves, comma separated [SOONG_POOLS]."),
    labels: str | None = typer.Option(None, "--labels", help="What it announces, comma separated [SOONG_LABELS]."),
    functions: str | None = typer.Option(
        None, "--functions", help="Modules that register step functions [SOONG_FUNCTIONS]."
    ),
    is_reloaded: bool = typer.Option(False, "--reload", help="Start again when a file of these modules changes."),
) -> None:
    """Claim and run steps until stopped; then finish or release the running ones."""
    from soong.orchestrator.embedded.folders import child_environment, kept_command, module_command
    from soong.orchestrator.embedded.starter import deployment
    from soong.shared.core.settings import load_settings

    raise_open_files()
    settings = asyncio.run(deployment(load_settings(), hint="SOONG_DATABASE_URL and SOONG_REDIS_URL"))
    given = {"--name": name, "--slots": slots, "--pools": pools, "--labels": labels, "--functions": functions}
    options = [part for option, value in given.items() if value for part in (option, str(value))]
    argv = kept_command(module_command("soong.worker", *options))
    environment = child_environment(settings)
    if is_reloaded:
        named = tuple(filter(None, map(str.strip, functions.split(",")))) if functions else settings.functions
        raise typer.Exit(_reloaded(argv, environment, named, settings.import_folders))
    # This process becomes the worker's subreaper, which forwards signals and ends as the worker does.
    os.execve(argv[0], argv, environment)  # noqa: S606  # an argv, no shell


def _reloaded(
    argv: Sequence[str], environment: Mapping[str, str], modules: Sequence[str], folders: Sequence[str]
) -> int:
    """Run a worker until it is stopped, and again after each change of its modules; return its exit code.

    A signal ends the worker that runs, and with it this. One that cannot start waits for the next change.
    """
    from soong.orchestrator.embedded.own_modules import module_files_of

    stopped = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopped.set())
    while True:
        files = module_files_of(modules, folders)
        child = subprocess.Popen(argv, env=environment, start_new_session=True)
        while module_files_of(modules, folders) == files:
            if stopped.wait(timing.POLL_ROWS_S):
                child.terminate()
                return child.wait()
        say("a module has changed: the worker starts again")
        child.terminate()
        child.wait()


projects = CommandTable()


@projects.command()
def mark(folder: Path = typer.Argument(Path(), help="The project's folder.")) -> None:
    """Mark a folder as a project and print its id.

    From then on steps that work in it are taken by those workers only that have the folder at the same path, with the
    same mark, and say so (SOONG_PROJECTS). A service on one machine needs no mark and asks for none.
    """
    from soong.orchestrator.client.program import existing_folder
    from soong.shared.sandbox.rooted import mark_project

    place = existing_folder(folder)
    output(mark_project(place))
    say(f"workers that have it are started with SOONG_PROJECTS={os.fspath(place)}")
