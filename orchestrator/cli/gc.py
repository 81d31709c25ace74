"""``soong gc``: removes what has ended, by age and by size (OPS-10)."""

import asyncio
import re
from typing import Final

import typer

from orchestrator.cli.console import emit, say
from orchestrator.retention import Collected, GarbageCollector, Limits
from shared.clock import SystemClock
from shared.errors import UsageError
from shared.sandbox.rooted import RootedFolder
from shared.settings import RUNS, Settings, load_settings

_AGES: Final = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}
_SIZES: Final = {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}
_AGE: Final = re.compile(r"(\d+)([smhdw])\Z")
_SIZE: Final = re.compile(r"(\d+(?:\.\d+)?)(B|KiB|MiB|GiB|TiB)\Z")


def command(
    *,
    older_than: str = typer.Option("", "--older-than", metavar="AGE", help="Remove what ended longer ago: 12h, 30d."),
    keep: str = typer.Option("", "--keep", metavar="SIZE", help="Then remove the oldest until this is left: 10GiB."),
    dry_run: bool = typer.Option(False, "--dry-run", help="Show what --older-than would remove; remove nothing."),
    is_json: bool = typer.Option(False, "--json", help="Print one JSON document."),
) -> None:
    """Remove ended tasks with their runs, logs, folders and artifacts. Open work and the audit log stay.

    It works beside a running service. On PostgreSQL it needs the role that owns the tables.
    """
    if not older_than and not keep:
        raise UsageError("neither --older-than nor --keep is given; name what to remove, for example --older-than 30d")
    now_us = SystemClock().now_us()
    before_us = now_us - read_age(older_than) * 1_000_000 if older_than else 0
    limits = Limits(before_us, read_size(keep) if keep else 0)
    done = asyncio.run(_collected(load_settings(), limits, is_dry=dry_run))
    if is_json:
        emit({"dry_run": dry_run, **done.as_json()})
    else:
        print(text_of(done, is_dry=dry_run))


def read_age(text: str) -> int:
    """Return an age in seconds. Raises: UsageError."""
    found = _AGE.match(text)
    if found is None:
        raise UsageError(f"--older-than {text!r} is not an age; write a number with s, m, h, d or w, such as 30d")
    return int(found[1]) * _AGES[found[2]]


def read_size(text: str) -> int:
    """Return a size in bytes. Raises: UsageError."""
    found = _SIZE.match(text)
    if found is None or not float(found[1]):
        raise UsageError(f"--keep {text!r} is not a size; write a number with B, KiB, MiB, GiB or TiB, such as 10GiB")
    return int(float(found[1]) * _SIZES[found[2]])


def text_of(done: Collected, *, is_dry: bool) -> str:
    """Return the result as people read it."""
    if is_dry:
        return f"would remove {done.tasks} tasks with {done.steps} steps; {bytes_text(done.used_bytes)} are stored now"
    return (
        f"removed {done.tasks} tasks, {done.steps} steps, {done.runs} runs, {done.sessions} sessions, "
        f"{done.folders} run folders, {done.artifacts} artifacts ({bytes_text(done.file_bytes)} of files)\n"
        f"{bytes_text(done.used_bytes)} are stored now"
    )


def bytes_text(number: int) -> str:
    """Return a size in the largest unit that leaves at least 1."""
    for unit, size in reversed(_SIZES.items()):
        if number >= size and unit != "B":
            return f"{number / size:.1f} {unit}"
    return f"{number} B"


async def _collected(settings: Settings, limits: Limits, *, is_dry: bool) -> Collected:
    from orchestrator.client_bootstrap import open_artifacts, open_retention

    if settings.is_embedded and not (settings.home / "soong.db").exists():
        raise UsageError(f"nothing has run in {str(settings.home)!r} yet; start with `soong run PLAN`")
    rows = await open_retention(settings)
    collector = GarbageCollector(rows, open_artifacts(settings), RootedFolder(settings.data, RUNS), SystemClock())
    try:
        return await (collector.preview(limits) if is_dry else collector.collect(limits, _tell))
    finally:
        await rows.close()


def _tell(done: Collected) -> None:
    if done.tasks % 100 == 0:
        say(f"  {done.tasks} tasks, {done.steps} steps removed …")
