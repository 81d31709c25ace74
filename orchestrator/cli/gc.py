"""``soong gc``: removes what has ended, by age and by size (OPS-10)."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

import typer

from soong.orchestrator.cli.console import emit, output, say
from soong.orchestrator.retention.collector import (
    CollectionPreview,
    CollectionReport,
    GarbageCollector,
    RetentionLimits,
)
from soong.shared.core.amounts import bytes_text, read_age, read_size
from soong.shared.core.clock import SystemClock
from soong.shared.core.errors import UsageError
from soong.shared.core.jsontext import Json
from soong.shared.core.settings import Settings, load_settings

T = TypeVar("T")


def command(
    *,
    older_than: str = typer.Option("", "--older-than", metavar="AGE", help="Remove what ended longer ago: 12h, 30d."),
    keep: str = typer.Option("", "--keep", metavar="SIZE", help="Then remove the oldest until this is left: 10GiB."),
    dry_run: bool = typer.Option(False, "--dry-run", help="Show what would be removed; remove nothing."),
    is_json: bool = typer.Option(False, "--json", help="Print one JSON document."),
) -> None:
    """Remove ended tasks with their runs, logs, folders and artifacts. Open work and the audit log stay.

    It works next to a running service. On PostgreSQL it needs the role that owns the tables.
    """
    if not older_than and not keep:
        raise UsageError("neither --older-than nor --keep is given; name what to remove, for example --older-than 30d")
    now_us = SystemClock().now_us()
    before_us = now_us - read_age(older_than) * 1_000_000 if older_than else 0
    limits = RetentionLimits(before_us, read_size(keep) if keep else 0)
    settings = load_settings()
    if dry_run:
        seen = asyncio.run(_with_collector(settings, lambda collector: collector.preview(limits)))
        _show(is_json, {"dry_run": True, **seen.as_json()}, preview_text(seen))
    else:
        done = asyncio.run(_with_collector(settings, lambda collector: collector.collect(limits, _tell)))
        _show(is_json, {"dry_run": False, **done.as_json()}, text_of(done))


def _show(is_json: bool, document: dict[str, Json], words: str) -> None:
    if is_json:
        emit(document)
    else:
        output(words)


def preview_text(seen: CollectionPreview) -> str:
    """Return a dry run as people read it."""
    kinds = ", ".join(f"{kind} {bytes_text(size)}" for kind, size in sorted(seen.artifact_bytes.items()))
    return (
        f"would remove {seen.tasks} tasks, {seen.steps} steps, {seen.runs} runs (about {bytes_text(seen.row_bytes)} "
        f"of rows)\n"
        f"  {seen.folders} run folders: {bytes_text(seen.folder_bytes)}\n"
        f"  {seen.artifacts} artifacts: {kinds or bytes_text(0)}\n"
        f"about {bytes_text(seen.freed_bytes)} of {bytes_text(seen.used_bytes)} that are stored now"
    )


def text_of(done: CollectionReport) -> str:
    """Return the result as people read it."""
    return (
        f"removed {done.tasks} tasks, {done.steps} steps, {done.runs} runs, {done.sessions} sessions, "
        f"{done.folders} run folders, {done.artifacts} artifacts ({bytes_text(done.row_bytes)} of rows, "
        f"{bytes_text(done.file_bytes)} of files)\n"
        f"{bytes_text(done.used_bytes)} are stored now"
    )


async def _with_collector(settings: Settings, work: Callable[[GarbageCollector], Awaitable[T]]) -> T:
    from soong.orchestrator.client.bootstrap import open_collector

    if settings.is_embedded and not (settings.home / "soong.db").exists():
        raise UsageError(f"nothing has run in {str(settings.home)!r} yet; start with `soong run PLAN`")
    async with open_collector(settings, SystemClock()) as collector:
        return await work(collector)


def _tell(done: CollectionReport) -> None:
    if done.tasks % 100 == 0:
        say(f"  {done.tasks} tasks, {done.steps} steps removed …")
