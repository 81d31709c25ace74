"""``soong backup``: everything of an embedded home in one file, while the service runs (OPS-13)."""

from datetime import UTC, datetime
from pathlib import Path

import typer

from soong.orchestrator.cli.console import emit, output, say, visible
from soong.shared.core.amounts import bytes_text
from soong.shared.core.clock import SystemClock
from soong.shared.core.settings import load_settings


def command(
    file: Path | None = typer.Argument(None, metavar="[FILE]", help="File to write [soong-backup-TIME.tar.gz here]."),
    *,
    is_json: bool = typer.Option(False, "--json", help="Print one JSON document."),
) -> None:
    """Back up the home: database, artifacts, run folders, configuration, signing key. Only you can read the file.

    The service may run: the database is copied as it is at one moment, then the files that it names.
    """
    from soong.orchestrator.approvals.provenance import check_person_now
    from soong.orchestrator.backup.create import create_backup

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
    if is_json:
        emit(done.as_json())
        return
    output(str(done.path))
    say(f"{done.files} files, {bytes_text(done.size_bytes)}; the signing key is in it, so keep it private")
