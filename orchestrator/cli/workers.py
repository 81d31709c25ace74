"""``soong workers``: who works, on what, and what waits for them (DIS-04)."""

import asyncio
import socket
from collections.abc import Sequence

import typer

from soong.orchestrator.cli.console import emit, one_line, output, say, table
from soong.orchestrator.cli.ids import opened_store
from soong.orchestrator.client.workers import WorkersView, WorkerView, list_workers
from soong.orchestrator.schemas.worker import WorkersSchema
from soong.shared.core.errors import UnavailableError
from soong.shared.core.settings import Settings, load_settings
from soong.shared.engine.sessions.session import ProcessState
from soong.shared.engine.tasks.metrics import LimitUsage

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None)


@app.callback()
def _group() -> None:
    """Say who works, on what, and what waits for them."""


@app.command("list")
def list_command(*, is_json: bool = typer.Option(False, "--json", help="Print one JSON document.")) -> None:
    """List the workers that are not gone, with what each holds, and the queues that they serve."""
    view = asyncio.run(_view(load_settings()))
    if is_json:
        emit(WorkersSchema.of(view).model_dump())
    else:
        output(text_of(view))


@app.command()
def check(*, host: str = typer.Option("", "--host", help="Another host than this one.")) -> None:
    """Succeed when a worker of this host lives: for a container's health check.

    A worker that stalls is declared gone by the orchestrators within the lease, and is then no longer found here.
    """
    wanted = host or socket.gethostname()
    view = asyncio.run(_view(load_settings()))
    found = [one.worker for one in view.workers if one.worker.host == wanted]
    if not any(worker.state in {ProcessState.LIVE, ProcessState.DRAINING} for worker in found):
        raise UnavailableError(f"no live worker on host {wanted!r}")
    say(f"{len(found)} workers of {wanted} live")


def text_of(view: WorkersView) -> str:
    """Return the list as people read it."""
    if not view.workers:
        workers = "no worker lives; start one with `soong worker`, or the service with `soong up`"
    else:
        heads = ("worker", "host", "state", "used", "pools", "labels", "version", "beats")
        workers = table(heads, [_row(one) for one in view.workers])
    pools = table(
        ("queue", "waiting", "free slots"), [(one.pool, str(one.waiting), str(one.free_slots)) for one in view.pools]
    )
    held = [
        (held.run_id, held.step_key.partition("/")[2], held.title, one.worker.node_name)
        for one in view.workers
        for held in one.holds
    ]
    runs = [table(("run", "step", "title", "worker"), held)] if held else []
    unended = [one_line(held.words, 0) for one in view.workers for held in one.holds if held.asked_to_end]
    runs += ["\n".join(unended)] if unended else []
    concurrency_limits = [limits_text(view.concurrency_limits)] if view.concurrency_limits else []
    return "\n\n".join([workers, *([pools] if view.pools else []), *concurrency_limits, *runs, *_parked(view.parked)])


def _parked(number: int) -> list[str]:
    if not number:
        return []
    runs = "1 run is parked and holds" if number == 1 else f"{number} runs are parked and hold"
    return [f"{runs} no slot while waiting for consent; see `soong approvals list`"]


def limits_text(concurrency_limits: Sequence[LimitUsage]) -> str:
    """Return the limits and how far each is used."""
    return table(("limit", "used"), [(bound.scope, f"{bound.used}/{bound.limit}") for bound in concurrency_limits])


def _row(one: WorkerView) -> tuple[str, ...]:
    worker = one.worker
    return (
        worker.node_name,
        worker.host,
        worker.state.value,
        f"{len(one.holds)}/{worker.slots}",
        ",".join(worker.pools),
        ",".join(one.labels) or "-",
        f"{one.version or '?'} (protocol {worker.protocol})",
        str(worker.beat),
    )


async def _view(settings: Settings) -> WorkersView:
    from soong.orchestrator.client.bootstrap import opened_metrics

    async with opened_store(settings) as store, opened_metrics(settings) as metrics:
        return await list_workers(store.claims, store.sessions, metrics)
