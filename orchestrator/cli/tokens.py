"""``soong tokens``: who may use the HTTP API. A token is printed once, when it is made, and kept nowhere."""

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import typer

from soong.orchestrator.approvals.approval import check_person
from soong.orchestrator.cli.console import emit, output, say, table
from soong.orchestrator.cli.ids import has_no_rows, opened_store
from soong.orchestrator.cli.options import JSON
from soong.shared.core.clock import SystemClock, rfc3339, to_the_second
from soong.shared.core.errors import NotFoundError, UsageError
from soong.shared.core.jsontext import Json
from soong.shared.core.settings import Settings, load_settings
from soong.shared.permissions.access.token import ApiToken, Right, make_token
from soong.shared.storage.store import Store

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None)

_UNITS_S = {"s": 1, "m": 60, "h": 3_600, "d": 86_400, "w": 604_800}


@app.command()
def create(
    *,
    principal: str = typer.Option(..., "--principal", metavar="NAME", help="Who it speaks for."),
    right: list[Right] = typer.Option(..., "--right", help="What it may do; several may be given."),
    expires: str = typer.Option("", "--expires", metavar="TIME", help="30d, 12h, 15m …; never when left out."),
) -> None:
    """Make a token and print it, once: only its digest is kept."""
    token, text = asyncio.run(_create(load_settings(), principal, right, seconds_of(expires)))
    output(text)
    until = "" if token.expires_us is None else f", until {to_the_second(token.expires_us)}"
    say(f"{token.id} speaks for {token.principal}: {', '.join(sorted(token.rights))}{until}")
    say("  it is not shown again; revoke it with: soong tokens revoke ID")


@app.command("list")
def list_tokens(*, is_json: bool = JSON) -> None:
    """List all tokens, those that are revoked or expired too; never their secrets."""
    tokens = asyncio.run(_list(load_settings()))
    now_us = SystemClock().now_us()
    if is_json:
        emit([_as_json(token, now_us) for token in tokens])
        return
    rows = [
        (
            token.id,
            token.principal,
            ",".join(sorted(token.rights)),
            to_the_second(token.created_us),
            "never" if token.expires_us is None else to_the_second(token.expires_us),
            token.problem(now_us) or "good",
        )
        for token in tokens
    ]
    output(table(("token", "principal", "rights", "made", "expires", "state"), rows))


@app.command()
def revoke(token: str = typer.Argument(..., metavar="ID", help="The token's id; not the token.")) -> None:
    """End a token for good; open streams of it end within seconds."""
    if token.startswith("soong_tok_"):
        raise UsageError("name the token by its id (tok_…, see `soong tokens list`): a token on a command line is seen")
    was_good = asyncio.run(_revoke(load_settings(), token))
    say(f"{token} is revoked" if was_good else f"{token} was revoked before")


def seconds_of(text: str) -> int | None:
    """Return the seconds of ``30d`` or ``12h``; None for no text. Raises: UsageError."""
    found = re.fullmatch(r"([1-9][0-9]{0,5})([smhdw])", text)
    if text and found is None:
        raise UsageError(f"invalid --expires {text!r}: write 30d, 12h, 15m or 90s")
    return None if found is None else int(found[1]) * _UNITS_S[found[2]]


async def _create(settings: Settings, principal: str, rights: list[Right], lives_s: int | None) -> tuple[ApiToken, str]:
    now_us = SystemClock().now_us()
    expires_us = None if lives_s is None else now_us + lives_s * 1_000_000
    token, text = make_token(principal, rights, now_us=now_us, expires_us=expires_us)
    async with _opened(settings) as store:
        await check_person(store.sessions, "make a token")
        await store.access.add_token(token)
    return token, text


async def _list(settings: Settings) -> list[ApiToken]:
    async with opened_store(settings) as store:
        return list(await store.access.tokens())


async def _revoke(settings: Settings, token_id: str) -> bool:
    async with opened_store(settings) as store:
        await check_person(store.sessions, "revoke a token")
        known = [
            token.id for token in await store.access.tokens() if token.id.endswith(token_id) and len(token_id) >= 6
        ]
        if len(known) != 1:
            raise NotFoundError("token", token_id)
        return await store.access.revoke_token(known[0], now_us=SystemClock().now_us())


@asynccontextmanager
async def _opened(settings: Settings) -> AsyncIterator[Store]:
    """Open the rows; the first token of a home may be made before anything has run in it."""
    if has_no_rows(settings):
        from soong.orchestrator.client.bootstrap import migrate
        from soong.orchestrator.embedded.folders import prepare_home

        prepare_home(settings)
        await migrate(settings)
    async with opened_store(settings) as store:
        yield store


def _as_json(token: ApiToken, now_us: int) -> dict[str, Json]:
    return {
        "id": token.id,
        "principal": token.principal,
        "rights": [str(right) for right in sorted(token.rights)],
        "created": rfc3339(token.created_us),
        "expires": None if token.expires_us is None else rfc3339(token.expires_us),
        "revoked": None if token.revoked_us is None else rfc3339(token.revoked_us),
        "state": token.problem(now_us) or "good",
    }
