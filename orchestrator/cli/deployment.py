"""The commands of deployments: an orchestrator alone, the tables, garbage collection (OPS-10), backups (OPS-13)."""

import asyncio
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from soong.orchestrator.cli.options import JSON
from soong.orchestrator.client.logs import configure_logs
from soong.orchestrator.embedded.folders import prepare_home, require_rows
from soong.orchestrator.terminal.console import say, show, visible
from soong.shared.core.amounts import bytes_text, read_age, read_size
from soong.shared.core.errors import UsageError
from soong.shared.core.settings import Settings, load_settings
from soong.shared.core.startup import raise_open_files, settle_gc
from soong.shared.core.timing import SystemClock

if TYPE_CHECKING:
    from soong.orchestrator.owner.service import Orchestrator
    from soong.orchestrator.retention.collector import CollectionPreview, CollectionReport

_WORKER = typer.Option("", "--grant-worker", metavar="ROLE", help="Give this PostgreSQL role a worker's rights.")
_ORCHESTRATOR = typer.Option(
    "", "--grant-orchestrator", metavar="ROLE", help="Give this PostgreSQL role an orchestrator's rights."
)
_CLIENT = typer.Option("", "--grant-client", metavar="ROLE", help="Give this PostgreSQL role the HTTP API's rights.")
_SCALER = typer.Option(
    "", "--grant-scaler", metavar="ROLE", help="Let this PostgreSQL role ask how many slots a pool wants, and no more."
)


async def orchestrator(
    *,
    metrics_port: int | None = typer.Option(
        None, "--metrics-port", min=0, max=65535, help="Answer /metrics and /healthz there [SOONG_METRICS_PORT]."
    ),
    metrics_address: str | None = typer.Option(
        None, "--metrics-address", help="Address of that port, loopback by default [SOONG_METRICS_ADDRESS]."
    ),
) -> None:
    """Own sessions of SOONG_DATABASE_URL and SOONG_REDIS_URL until stopped. Several may run at once."""
    settings = load_settings(metrics_port=metrics_port, metrics_address=metrics_address)
    missing = [f"SOONG_{name.upper()}" for name in ("database_url", "redis_url") if not getattr(settings, name)]
    if missing:
        raise UsageError(f"{' and '.join(missing)} must be set; for a service on this machine alone run `soong up`")
    configure_logs(settings)
    raise_open_files()
    from soong.orchestrator.owner.bootstrap import build  # Celery and SQLAlchemy, not needed for --help

    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    owner = await build(settings)
    await owner.start()
    try:
        async with _metrics(settings, owner):
            settle_gc()
            say("soong orchestrator is ready")
            await stop.wait()
    finally:
        await owner.stop()


@asynccontextmanager
async def _metrics(settings: Settings, owner: "Orchestrator") -> AsyncIterator[None]:
    """Answer at the metrics' address, if there is one."""
    if not settings.metrics_port:
        yield
        return
    from soong.orchestrator.client.bootstrap import open_metrics
    from soong.orchestrator.telemetry.metrics import MetricsEndpoint, collect, text

    metrics, clock = open_metrics(settings), SystemClock()

    async def read() -> bytes:
        return text(await collect(owner.parts.store, metrics, clock))

    endpoint = MetricsEndpoint(read)
    try:
        endpoint.start(settings.metrics_address, settings.metrics_port)
        yield
    finally:
        await endpoint.stop()
        await metrics.close()


async def migrate(
    *, worker: str = _WORKER, orchestrator: str = _ORCHESTRATOR, client: str = _CLIENT, scaler: str = _SCALER
) -> None:
    """Make or upgrade the tables of SOONG_DATABASE_URL, or of the home's own database.

    Privileges are granted again each time, so that they match this version; run it as the owner of the tables.
    """
    from soong.orchestrator.client.bootstrap import migrate  # SQLAlchemy, not needed for --help

    settings = load_settings()
    if settings.is_embedded:
        prepare_home(settings)
    await migrate(settings, worker=worker, orchestrator=orchestrator, client=client, scaler=scaler)
    say("the database has this version's schema")
    kinds = {worker: "a worker", orchestrator: "an orchestrator", client: "the HTTP API", scaler: "an autoscaler"}
    for role, kind in kinds.items():
        if role:
            say(f"the role {role} has the rights of {kind}, and no others")


async def gc(
    *,
    older_than: str = typer.Option("", "--older-than", metavar="AGE", help="Remove what ended longer ago: 12h, 30d."),
    keep: str = typer.Option("", "--keep", metavar="SIZE", help="Then remove the oldest until this is left: 10GiB."),
    dry_run: bool = typer.Option(False, "--dry-run", help="Show what would be removed; remove nothing."),
    is_json: bool = JSON,
) -> None:
    """Remove ended tasks with their runs, logs, folders and artifacts. Open work and the audit log stay.

    It works next to a running service. On PostgreSQL it needs the role that owns the tables.
    """
    from soong.orchestrator.client.bootstrap import open_collector
    from soong.orchestrator.retention.collector import RetentionLimits  # a part that may be left out

    if not older_than and not keep:
        raise UsageError("neither --older-than nor --keep is given; name what to remove, for example --older-than 30d")
    now_us = SystemClock().now_us()
    before_us = now_us - read_age(older_than) * 1_000_000 if older_than else 0
    limits = RetentionLimits(before_us, read_size(keep) if keep else 0)
    settings = load_settings()
    require_rows(settings)
    async with open_collector(settings, SystemClock()) as collector:
        if dry_run:
            seen = await collector.preview(limits)
            show({"dry_run": True, **seen.as_json()}, lambda: preview_text(seen), is_json=is_json)
        else:
            done = await collector.collect(
                limits,
                lambda done: (
                    say(f"  {done.tasks} tasks, {done.steps} steps removed …") if done.tasks % 100 == 0 else None
                ),
            )
            show({"dry_run": False, **done.as_json()}, lambda: text_of(done), is_json=is_json)


def preview_text(seen: "CollectionPreview") -> str:
    """Return a dry run as people read it."""
    kinds = ", ".join(f"{kind} {bytes_text(size)}" for kind, size in sorted(seen.artifact_bytes.items()))
    return (
        f"would remove {seen.tasks} tasks, {seen.steps} steps, {seen.runs} runs (about {bytes_text(seen.row_bytes)} "
        f"of rows)\n"
        f"  {seen.folders} run folders: {bytes_text(seen.folder_bytes)}\n"
        f"  {seen.artifacts} artifacts: {kinds or bytes_text(0)}\n"
        f"about {bytes_text(seen.freed_bytes)} of {bytes_text(seen.used_bytes)} that are stored now"
    )


def text_of(done: "CollectionReport") -> str:
    """Return the result as people read it."""
    return (
        f"removed {done.tasks} tasks, {done.steps} steps, {done.runs} runs, {done.sessions} sessions, "
        f"{done.folders} run folders, {done.artifacts} artifacts ({bytes_text(done.row_bytes)} of rows, "
        f"{bytes_text(done.file_bytes)} of files)\n"
        f"{bytes_text(done.used_bytes)} are stored now"
    )


def backup(
    file: Path | None = typer.Argument(None, metavar="[FILE]", help="File to write [soong-backup-TIME.tar.gz here]."),
    *,
    is_json: bool = JSON,
) -> None:
    """Back up the home: database, artifacts, run folders, configuration, signing key. Only you can read the file.

    The service may run: the database is copied as it is at one moment, then the files that it names.
    """
    from soong.orchestrator.approvals.approval import check_person_now
    from soong.orchestrator.backup.home import create_backup

    check_person_now("back up a home")
    clock, settings = SystemClock(), load_settings()
    if file is None:
        now = datetime.fromtimestamp(clock.now_us() / 1_000_000, UTC)
        file = Path(f"soong-backup-{now:%Y%m%dT%H%M%SZ}.tar.gz")
    done = create_backup(settings, file, clock)
    if settings.artifacts_url:
        say(f"left out: the artifacts in {visible(settings.artifacts_url)}; back up the bucket by its own tools")
    for name in done.skipped:
        say(f"left out: {visible(name)} is not a regular file")
    show(done.as_json(), lambda: str(done.path), is_json=is_json)
    if not is_json:
        say(f"{done.files} files, {bytes_text(done.size_bytes)}; the signing key is in it, so keep it private")


def restore(
    file: Path = typer.Argument(..., metavar="FILE", help="What `soong backup` wrote."), *, is_json: bool = JSON
) -> None:
    """Restore a backup into the home, which must be empty. Every file is checked before any is in its place.

    Restore only your own backups: a home has configuration and programs, which decide what agents may do.
    """
    from soong.orchestrator.approvals.approval import check_person_now
    from soong.orchestrator.backup.home import restore_backup

    check_person_now("restore a home")
    done = restore_backup(load_settings(), file)
    show(done.as_json(), lambda: str(done.home), is_json=is_json)
    if not is_json:
        say(f"{done.files} files restored, written by soong {done.program}")
        say("work that was under way continues with the next `soong up`; do not run the old home at the same time")
