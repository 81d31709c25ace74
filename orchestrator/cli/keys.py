"""``soong keys``: which keys sign decisions, and how one is exchanged or ended (docs/security.md, "Keys")."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta

import typer

from soong.orchestrator.approvals.approval import check_person
from soong.orchestrator.cli.console import emit, output, say, table
from soong.orchestrator.cli.ids import deployment, opened_store
from soong.orchestrator.cli.options import JSON
from soong.orchestrator.client.keys import OVERLAP, EndedKey, KeyRing
from soong.shared.core.clock import SystemClock, rfc3339
from soong.shared.core.errors import NotFoundError, UsageError
from soong.shared.core.jsontext import Json
from soong.shared.core.settings import Settings, load_settings

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None)

_REASON = typer.Option("", "--reason", help="Why; kept in the audit log.")


@app.command("list")
def list_keys(*, is_json: bool = JSON) -> None:
    """List the public keys: which signs here, which are good, which have ended."""
    asyncio.run(_list(is_json=is_json))


@app.command()
def rotate(
    *,
    overlap: float = typer.Option(
        OVERLAP.total_seconds(), "--overlap", min=0, metavar="SECONDS", help="How long the old key still signs."
    ),
    reason: str = _REASON,
) -> None:
    """Make a new key in the key file. Running orchestrators sign with it at once; old decisions stay good."""
    asyncio.run(_rotate(timedelta(seconds=overlap), reason))


@app.command()
def adopt(*, reason: str = _REASON) -> None:
    """Publish the key that the key file holds: one from a secret store, or of another orchestrator's host."""
    asyncio.run(_adopt(reason))


@app.command()
def retire(
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
    asyncio.run(_retire(key, is_revoked=revoke, reason=reason))


@asynccontextmanager
async def _keyring(settings: Settings, change: str = "") -> AsyncIterator[KeyRing]:
    """Open the keys; ``change`` is what is about to be done to them, which a person alone may."""
    async with opened_store(settings) as store:
        if change:
            await check_person(store.sessions, change)
        yield KeyRing(store.keys, settings.key_file, SystemClock(), settings.principal)


async def _list(*, is_json: bool) -> None:
    async with _keyring(load_settings()) as keyring:
        keys, current, now_us = await keyring.keys(), keyring.current(), keyring.clock.now_us()
    rows: list[dict[str, Json]] = [
        {
            "id": key.id,
            "state": key.state(now_us),
            "signs_here": key.id == current,
            "published": rfc3339(key.created_us),
            "retired": None if key.retired_us is None else rfc3339(key.retired_us),
            "revoked": None if key.revoked_us is None else rfc3339(key.revoked_us),
            "public_key": key.public_key.hex(),
        }
        for key in keys
    ]
    if is_json:
        emit(rows)
        return
    columns = ("key", "state", "signs here", "published", "ended")
    output(table(columns, [_cells(row) for row in rows]))


def _cells(row: dict[str, Json]) -> list[str]:
    ended = row["revoked"] or row["retired"] or ""
    here = "yes" if row["signs_here"] else ""
    return [str(row["id"]), str(row["state"]), here, str(row["published"]), str(ended)]


async def _rotate(overlap: timedelta, reason: str) -> None:
    async with _keyring(load_settings(), "exchange the signing key") as keyring:
        ended = await keyring.rotate(reason=reason, overlap=overlap)
    output(ended.successor)
    if ended.key_id:
        say(f"{ended.key_id} signs for {overlap.total_seconds():g} s more; what it signed stays good until it expires")
    elif ended.replaced:
        say(f"the file held {ended.replaced}, which was never published; nothing that it signed is good")
        say("end what signed before it: soong keys list, then soong keys retire KEY")


async def _adopt(reason: str) -> None:
    async with _keyring(load_settings(), "publish a signing key") as keyring:
        key_id = await keyring.adopt(reason=reason)
    output(key_id)
    say(f"{key_id} is published; orchestrators that have this key file sign with it from now on")


async def _retire(text: str, *, is_revoked: bool, reason: str) -> None:
    settings = load_settings()
    async with _keyring(settings, "end a signing key") as keyring:
        found = [key.id for key in await keyring.keys() if key.id.startswith(text)]
        if not found:
            raise NotFoundError("key", text)
        if len(found) > 1:
            raise UsageError(f"{text!r} fits {len(found)} keys; type more of the id (soong keys list)")
        ended = await keyring.retire(found[0], is_revoked=is_revoked, reason=reason)
    if ended.successor:
        say(f"{ended.successor} signs in its place")
    say(f"{ended.key_id} is {'revoked' if is_revoked else 'retired'}")
    if is_revoked:
        say(f"{len(ended.expired)} decisions by it were not used yet; their calls ask again")
        await _tell(settings, ended)


async def _tell(settings: Settings, ended: EndedKey) -> None:
    """Notify owners of what lapsed; without Redis they look at the rows soon enough."""
    reachable = await deployment(settings)
    if not ended.expired or not reachable.redis_url:
        return
    from soong.orchestrator.client.bootstrap import opened_notifier

    async with opened_notifier(reachable) as notifier:
        await notifier.notify_owners(sorted({one.session_id for one in ended.expired}))
