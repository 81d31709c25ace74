"""``soong tokens``, ``soong keys``, ``soong audit``: who may use the API, what signs decisions, and what was decided.

A token is printed once, when it is made, and kept nowhere. Keys are exchanged as docs/security.md, "Keys", has it.
"""

from datetime import UTC, datetime, timedelta
from typing import Final

import typer

from soong.orchestrator.cli.options import JSON, CommandTable
from soong.orchestrator.operations.administration import (
    OVERLAP,
    all_tokens,
    entries,
    make_api_token,
    opened_keys,
    opened_store,
    revoke_token,
)
from soong.orchestrator.operations.administration import verify as verified
from soong.orchestrator.terminal.console import Columns, emit, listed, output, say, second_of
from soong.shared.core import timing
from soong.shared.core.amounts import read_age
from soong.shared.core.errors import UsageError
from soong.shared.core.timing import to_the_second
from soong.shared.permissions.access.token import Right
from soong.shared.permissions.audit_log import AuditKind

tokens = CommandTable()


@tokens.command()
async def create(
    *,
    principal: str = typer.Option(..., "--principal", metavar="NAME", help="Who it speaks for."),
    right: list[Right] = typer.Option(..., "--right", help="What it may do; several may be given."),
    expires: str = typer.Option("", "--expires", metavar="TIME", help="30d, 12h, 15m …; never when left out."),
) -> None:
    """Make a token and print it, once: only its digest is kept."""
    token, text = await make_api_token(principal, right, lives_s=seconds_of(expires))
    output(text)
    until = "" if token.expires_us is None else f", until {to_the_second(token.expires_us)}"
    say(f"{token.id} speaks for {token.principal}: {', '.join(sorted(token.rights))}{until}")
    say("  it is not shown again; revoke it with: soong tokens revoke ID")


@tokens.command("list")
async def list_tokens(*, is_json: bool = JSON) -> None:
    """List all tokens, those that are revoked or expired too; never their secrets."""
    listed(
        await all_tokens(),
        {
            "token": "id",
            "principal": "principal",
            "rights": lambda one: ",".join(one["rights"]),
            "made": lambda one: second_of(one["created"]),
            "expires": lambda one: second_of(one["expires"]) or "never",
            "state": "state",
        },
        is_json=is_json,
    )


@tokens.command()
async def revoke(token: str = typer.Argument(..., metavar="ID", help="The token's id; not the token.")) -> None:
    """End a token for good; open streams of it end within seconds."""
    was_good = await revoke_token(token)
    say(f"{token} is revoked" if was_good else f"{token} was revoked before")


def seconds_of(text: str) -> int | None:
    """Return the seconds of ``30d`` or ``12h``; None for no text. Raises: UsageError."""
    lives_s = read_age(text, "--expires") if text else None
    if lives_s is not None and not 0 < lives_s <= 36_500 * timing.DAY_S:
        raise UsageError(f"invalid --expires {text!r}: write 30d, 12h, 15m or 90s, at most 100 years")
    return lives_s


keys = CommandTable()

_REASON = typer.Option("", "--reason", help="Why; kept in the audit log.")


@keys.command("list")
async def list_keys(*, is_json: bool = JSON) -> None:
    """List the public keys: which signs here, which are good, which have ended."""
    columns: Columns = {
        "key": "id",
        "state": "state",
        "signs here": lambda key: "yes" if key["signs_here"] else "",
        "published": "published",
        "ended": lambda key: str(key["revoked"] or key["retired"] or ""),
    }
    async with opened_keys() as keyring:
        found = await keyring.listed()
    listed(found, columns, is_json=is_json)


@keys.command()
async def rotate(
    *,
    overlap: float = typer.Option(
        OVERLAP.total_seconds(), "--overlap", min=0, metavar="SECONDS", help="How long the old key still signs."
    ),
    reason: str = _REASON,
) -> None:
    """Make a new key in the key file. Running orchestrators sign with it at once; old decisions stay good."""
    async with opened_keys("exchange the signing key") as keyring:
        ended = await keyring.rotate(reason=reason, overlap=timedelta(seconds=overlap))
    output(ended.successor)
    if ended.key_id:
        say(f"{ended.key_id} signs for {overlap:g} s more; what it signed stays good until it expires")
    elif ended.replaced:
        say(f"the file held {ended.replaced}, which was never published; nothing that it signed is good")
        say("end what signed before it: soong keys list, then soong keys retire KEY")


@keys.command()
async def adopt(*, reason: str = _REASON) -> None:
    """Publish the key that the key file holds: one from a secret store, or of another orchestrator's host."""
    async with opened_keys("publish a signing key") as keyring:
        key_id = await keyring.adopt(reason=reason)
    output(key_id)
    say(f"{key_id} is published; orchestrators that have this key file sign with it from now on")


@keys.command()
async def retire(
    key: str = typer.Argument(..., help="The key's id, or enough of its beginning."),
    *,
    revoke: bool = typer.Option(
        False,
        "--revoke",
        help="Revoke immediately (compromised key): unused decisions it signed become invalid and are requested again.",
    ),
    reason: str = _REASON,
) -> None:
    """End a key. One that signs here is exchanged first."""
    async with opened_keys("end a signing key") as keyring:
        ended = await keyring.retire(await keyring.find(key), is_revoked=revoke, reason=reason)
    if ended.successor:
        say(f"{ended.successor} signs in its place")
    say(f"{ended.key_id} is {'revoked' if revoke else 'retired'}")
    if revoke:
        say(f"{len(ended.expired)} decisions by it were not used yet; their calls ask again")


audit = CommandTable()

EXIT_BROKEN: Final = 1


@audit.command("export")
async def export_audit(
    *,
    since: str = typer.Option("", "--since", metavar="WHEN", help="Only from then on: 2026-11-21T08:00Z, or 2h, 7d."),
    session: str = typer.Option("", "--session", help="Only of this session."),
    kind: list[str] = typer.Option([], "--kind", help="Only entries of this kind; may be repeated."),
) -> None:
    """Write the audit log as JSON lines, oldest first, secrets taken out."""
    unknown = sorted(set(kind) - set(AuditKind))
    if unknown:
        raise UsageError(f"there is no kind {unknown[0]!r}; kinds are {', '.join(AuditKind)}")
    from_us = since_us(since, datetime.now(UTC))

    async with opened_store() as store:
        async for entry in entries(store.audit, session_id=session, kinds=kind, since_us=from_us):
            emit(entry.as_json(), is_line=True)


@audit.command("verify")
async def verify_audit(
    *,
    expect_digest: list[str] = typer.Option([], metavar="DIGEST", help="A digest noted earlier that must be there."),
    is_json: bool = typer.Option(False, "--json", help="Print one JSON document, with the digests to note."),
) -> None:
    """Check that no entry was changed or taken away, and that decisions were used for what they were given."""
    async with opened_store() as store:
        found = await verified(store.audit, store.keys, seen=expect_digest)
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
    raise typer.Exit(0 if found.holds else EXIT_BROKEN)


def since_us(text: str, now: datetime) -> int:
    """Return the instant that a person means: a date with its zone (UTC if none), or so long ago; 0 for nothing.
    Raises: UsageError, it is neither.
    """
    if not text:
        return 0
    try:
        then = datetime.fromisoformat(text)
    except ValueError:
        try:
            then = now - timedelta(seconds=read_age(text))
        except (UsageError, OverflowError):
            raise UsageError(f"invalid --since {text!r}: write 2026-11-21T08:00Z, or 90m, 2h, 7d for ago") from None
    then = then if then.tzinfo is not None else then.replace(tzinfo=UTC)
    return round(then.timestamp() * 1_000_000)
