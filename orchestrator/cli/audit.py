"""``soong audit``: who answered, decided and granted what, when and by which channel; and whether the log is intact."""

import asyncio
import re
import sys
from datetime import UTC, datetime, timedelta
from typing import Final

import typer

from soong.orchestrator.cli.console import emit, output, say
from soong.orchestrator.cli.ids import opened_store
from soong.shared.core.errors import UsageError
from soong.shared.core.settings import load_settings
from soong.shared.permissions.audit_log.entry import AuditKind

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None)

EXIT_BROKEN: Final = 1
_AGO: Final = re.compile(r"(\d{1,9})([smhd])")
_UNITS: Final = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}


@app.command()
def export(
    *,
    since: str = typer.Option("", "--since", metavar="WHEN", help="Only from then on: 2026-11-21T08:00Z, or 2h, 7d."),
    session: str = typer.Option("", "--session", help="Only of this session."),
    kind: list[str] = typer.Option([], "--kind", help="Only entries of this kind; may be repeated."),
) -> None:
    """Write the audit log as JSON lines, oldest first, secrets taken out."""
    unknown = sorted(set(kind) - set(AuditKind))
    if unknown:
        raise UsageError(f"there is no kind {unknown[0]!r}; kinds are {', '.join(AuditKind)}")
    asyncio.run(_export(since_us(since, datetime.now(UTC)), session, kind))


@app.command()
def verify(
    *,
    expect_digest: list[str] = typer.Option([], metavar="DIGEST", help="A digest noted earlier that must be there."),
    is_json: bool = typer.Option(False, "--json", help="Print one JSON document, with the digests to note."),
) -> None:
    """Check that no entry was changed or taken away, and that decisions were used for what they were given."""
    sys.exit(asyncio.run(_verify(expect_digest, is_json=is_json)))


def since_us(text: str, now: datetime) -> int:
    """Return the instant that a person means: a date with its zone (UTC if none), or so long ago; 0 for nothing.

    Raises:
        UsageError: it is neither.
    """
    if not text:
        return 0
    ago = _AGO.fullmatch(text)
    if ago is not None:
        then = now - timedelta(**{_UNITS[ago[2]]: int(ago[1])})
    else:
        try:
            then = datetime.fromisoformat(text)
        except ValueError:
            raise UsageError(f"invalid --since {text!r}: write 2026-11-21T08:00Z, or 90m, 2h, 7d for ago") from None
        then = then if then.tzinfo is not None else then.replace(tzinfo=UTC)
    return round(then.timestamp() * 1_000_000)


async def _export(from_us: int, session_id: str, kinds: list[str]) -> None:
    from soong.orchestrator.client.audit import entries

    async with opened_store(load_settings()) as store:
        async for entry in entries(store.audit, session_id=session_id, kinds=kinds, since_us=from_us):
            emit(entry.as_json(), is_line=True)


async def _verify(expected: list[str], *, is_json: bool) -> int:
    from soong.orchestrator.client.audit import verify as check

    async with opened_store(load_settings()) as store:
        found = await check(store.audit, store.keys, seen=expected)
    problems = [str(found.broken)] if found.broken is not None else []
    problems += [f"the entry {digest} that was noted is not there any more" for digest in found.missing]
    problems += found.misused
    if is_json:
        counted = {"entries": found.entries, "uses": found.uses}
        emit({"holds": found.holds, **counted, "heads": found.heads, "problems": problems})
    else:
        for problem in problems:
            say(f"broken: {problem}")
        output(f"{found.entries} entries in {len(found.heads)} chains, {found.uses} uses of decisions")
        if found.holds:
            output("all of it holds; note elsewhere, for --expect-digest:")
            output("\n".join(found.heads.values()))
    return 0 if found.holds else EXIT_BROKEN
