"""``soong restore``: a backup into an empty home (OPS-13)."""

from pathlib import Path

import typer

from soong.orchestrator.cli.console import emit, output, say
from soong.shared.core.settings import load_settings


def command(
    file: Path = typer.Argument(..., metavar="FILE", help="What `soong backup` wrote."),
    *,
    is_json: bool = typer.Option(False, "--json", help="Print one JSON document."),
) -> None:
    """Restore a backup into the home, which must be empty. Every file is checked before any is in its place.

    Restore only your own backups: a home has configuration and programs, which decide what agents may do.
    """
    from soong.orchestrator.approvals.provenance import check_person_now
    from soong.orchestrator.backup.restore import restore_backup

    check_person_now("restore a home")
    done = restore_backup(load_settings(), file)
    if is_json:
        emit(done.as_json())
        return
    output(str(done.home))
    say(f"{done.files} files restored, written by soong {done.program}")
    say("work that was under way continues with the next `soong up`; do not run the old home at the same time")
