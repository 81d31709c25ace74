"""The operations of the person who runs a deployment: tokens, keys, audit log, limits, budgets, notifications.

They have no route, as the HTTP API's database role may not change these rows: their caller's process opens them.
"""

import time
from collections import defaultdict
from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Final

from soong.orchestrator.embedded.folders import has_no_rows, prepare_home, require_rows
from soong.orchestrator.schemas.base import instant
from soong.shared.agents.run_models import Pauses
from soong.shared.core import timing
from soong.shared.core.errors import NotFoundError, UsageError
from soong.shared.core.jsontext import Json
from soong.shared.core.settings import Settings, load_settings
from soong.shared.core.timing import Clock, SystemClock, utc_date
from soong.shared.core.value import Value
from soong.shared.engine.runs.budgets import DAY, NO_BUDGET, Budget, BudgetState, session_scope
from soong.shared.engine.tasks.claims import limit_scope
from soong.shared.engine.tasks.event_feed import Notice, NoticeState
from soong.shared.engine.tasks.step import ConcurrencyLimit
from soong.shared.permissions.access.token import ApiToken, Right, make_token
from soong.shared.permissions.audit_log import AuditEntry, AuditStore, Break, Verifier, problem
from soong.shared.permissions.signing import ExpiredDecision, KeyStore, Signer
from soong.shared.storage.store import Store

OVERLAP: Final = timedelta(seconds=60)
"""How long the old key still signs after a rotation: owners' clocks may differ from that of the rotating process."""


class EndedKey(Value):
    """The end of a key. ``successor`` is the key that was made in its place, if it was the one that signs here.

    ``replaced`` is the key that the file held although it was never published; ``key_id`` is then empty.
    """

    key_id: str
    successor: str
    expired: tuple[ExpiredDecision, ...] = ()
    replaced: str = ""


class KeyRing(Value):
    """The keys of a deployment: the file of this machine and the rows of all.

    The order makes every moment safe: the new public key is in the table before the file holds the new key, and the old
    one is retired a while after, so that an owner which read the file just before still signs what workers believe. A
    key that is in the file and not in the table is published by :meth:`adopt` alone: by an operator who knows it.
    """

    store: KeyStore
    file: Path
    clock: Clock
    principal: str

    def current(self) -> str:
        """Return the id of the key that signs here; empty where no key file is."""
        return Signer.load(self.file).key_id if self.file.exists() else ""

    async def listed(self) -> list[dict[str, Json]]:
        """Return the public keys: which signs here, which are good, which have ended."""
        current, now_us = self.current(), self.clock.now_us()
        return [
            {
                "id": key.id,
                "state": key.state(now_us),
                "signs_here": key.id == current,
                "published": instant(key.created_us),
                "retired": instant(key.retired_us),
                "revoked": instant(key.revoked_us),
                "public_key": key.public_key.hex(),
            }
            for key in await self.store.signing_keys()
        ]

    async def find(self, text: str) -> str:
        """Return the id of the key that begins so. Raises: NotFoundError; UsageError when several do."""
        from soong.orchestrator.operations.service import only  # FastAPI

        return only(text, "key", [one.id for one in await self.store.signing_keys() if one.id.startswith(text)])

    async def rotate(self, *, reason: str, overlap: timedelta = OVERLAP) -> EndedKey:
        """Let a new key sign from now on; what the old one signed stays good until it expires.

        A key that is in the file and was never published is replaced, and never becomes good.
        """
        old = self.current()
        is_published = bool(old) and await self.store.signing_key(old) is not None
        new = await self._exchange(reason)
        if not is_published:
            return EndedKey("", new, replaced=old)
        at_us = self.clock.now_us() + round(overlap.total_seconds() * 1_000_000)
        await self._end(old, is_revoked=False, at_us=at_us, reason=reason)
        return EndedKey(old, new)

    async def adopt(self, *, reason: str) -> str:
        """Publish the key that the file holds, made when there is none, and return its id.
        Raises: UsageError, it has been retired or revoked.
        """
        signer = Signer.load(self.file)
        await self._publish(signer, reason)
        key = await self.store.signing_key(signer.key_id)
        if key is not None and key.state(self.clock.now_us()) in ("retired", "revoked"):
            raise UsageError(f"the key {key.id} is {key.state(self.clock.now_us())}; run `soong keys rotate`")
        return signer.key_id

    async def retire(self, key_id: str, *, is_revoked: bool, reason: str) -> EndedKey:
        """End a key; one that signs here is exchanged first. Revoked: nothing that it signed counts any more.
        Raises: NotFoundError.
        """
        if await self.store.signing_key(key_id) is None:
            raise NotFoundError("key", key_id)
        successor = await self._exchange(reason) if key_id == self.current() else ""
        expired = await self._end(key_id, is_revoked=is_revoked, at_us=self.clock.now_us(), reason=reason)
        return EndedKey(key_id, successor, expired)

    async def _exchange(self, reason: str) -> str:
        new = Signer.generate()
        await self._publish(new, reason)
        new.save(self.file)
        return new.key_id

    async def _publish(self, signer: Signer, reason: str) -> None:
        said = {"principal": self.principal, "reason": reason}
        await self.store.publish_key(signer.key_id, signer.public_key, now_us=self.clock.now_us(), **said)

    async def _end(self, key_id: str, *, is_revoked: bool, at_us: int, reason: str) -> tuple[ExpiredDecision, ...]:
        now_us, principal = self.clock.now_us(), self.principal
        ended = await self.store.retire_key(
            key_id, is_revoked=is_revoked, at_us=at_us, principal=principal, reason=reason, now_us=now_us
        )
        return tuple(ended)


PAGE: Final = 1000


async def entries(
    store: AuditStore, *, session_id: str = "", kinds: Collection[str] = (), since_us: int = 0
) -> AsyncIterator[AuditEntry]:
    """Yield the entries that are asked for, oldest first."""
    after = 0
    while page := await store.audit_entries(
        after=after, session_id=session_id, kinds=kinds, since_us=since_us, limit=PAGE
    ):
        for entry in page:
            yield entry
        after = page[-1].ordinal


class Verification(Value):
    """The result of a check. ``heads`` are the last digests by chain, to be noted elsewhere."""

    entries: int
    heads: dict[str, str]
    broken: Break | None = None
    missing: tuple[str, ...] = ()
    """Digests that were noted elsewhere and are not there any more."""
    misused: tuple[str, ...] = ()
    """Uses of decisions that do not hold."""
    uses: int = 0

    @property
    def holds(self) -> bool:
        return self.broken is None and not self.missing and not self.misused


async def verify(store: AuditStore, keys: KeyStore, *, seen: Collection[str] = ()) -> Verification:
    """Check every chain to its first broken entry, then every use of a decision."""
    verifier, after = Verifier(), 0
    broken: Break | None = None
    while broken is None and (page := await store.audit_entries(after=after, limit=PAGE)):
        broken = verifier.check(page)
        after = page[-1].ordinal
    heads = {chain: digest for chain, (_, digest) in sorted(verifier.heads.items())}
    missing = tuple(digest for digest in seen if broken is None and not verifier.has_seen(digest))
    known = {key.id: key for key in await keys.signing_keys()}
    misused: list[str] = []
    uses, last = 0, ""
    while found := await store.uses(after=last, limit=PAGE):
        for use in found:
            if wrong := problem(use, known):
                call = f"used by call {use.tool_call_id} of run {use.run_id}"
                misused.append(f"decision {use.decision_id}, {call}: {wrong}")
        uses += len(found)
        last = found[-1].decision_id
    return Verification(verifier.count, heads, broken, missing, tuple(misused), uses)


NOTICES_SHOWN: Final = 200


@asynccontextmanager
async def opened_store(
    change: str = "", *, makes: bool = False, settings: Settings | None = None
) -> AsyncIterator[Store]:
    """Open the rows, for reading or for a ``change`` that a person alone may make; ``makes`` them where there are none.
    Raises: UsageError, this home has none yet; StartedByRunError, a run started this process; UnavailableError,
    SchemaVersionError, they cannot be read.
    """
    settings = settings or load_settings()
    if makes and has_no_rows(settings):
        from soong.orchestrator.client.bootstrap import migrate

        prepare_home(settings)
        await migrate(settings)
    require_rows(settings)
    from soong.orchestrator.client.bootstrap import opened_rows  # SQLAlchemy, which --help does not pay

    async with opened_rows(settings) as store:
        if change:
            from soong.orchestrator.approvals.approval import check_person

            await check_person(store.sessions, change)
        yield store


async def all_tokens() -> list[dict[str, Json]]:
    """Return all tokens, those that are revoked or expired too; never their secrets."""
    now_us = SystemClock().now_us()
    async with opened_store() as store:
        return [
            {
                "id": token.id,
                "principal": token.principal,
                "rights": sorted(map(str, token.rights)),
                "created": instant(token.created_us),
                "expires": instant(token.expires_us),
                "revoked": instant(token.revoked_us),
                "state": token.problem(now_us) or "good",
            }
            for token in await store.access.tokens()
        ]


async def make_api_token(principal: str, rights: Sequence[Right], *, lives_s: int | None) -> tuple[ApiToken, str]:
    """Make a token, also in a home in which nothing has run yet; return it with its text, which is kept nowhere."""
    async with opened_store("make a token", makes=True) as store:
        return await _added_token(store, principal, rights, lives_s)


async def make_sign_in(settings: Settings) -> str:
    """Return a code that signs the user in at the console, once and within a minute."""
    async with opened_store("open the console", settings=settings) as store:
        rights = [Right.RUN, Right.APPROVE, *([Right.ADMIN] if settings.is_embedded else ())]
        return (await _added_token(store, settings.principal, rights, timing.DAY_S // 2, sign_in_s=60))[1]


async def _added_token(
    store: Store, principal: str, rights: Sequence[Right], lives_s: int | None, *, sign_in_s: int | None = None
) -> tuple[ApiToken, str]:
    now_us = SystemClock().now_us()
    expires_us, sign_in_by_us = (None if one is None else now_us + one * 1_000_000 for one in (lives_s, sign_in_s))
    token, text = make_token(principal, rights, now_us=now_us, expires_us=expires_us, sign_in_by_us=sign_in_by_us)
    await store.access.add_token(token)
    return token, text


async def revoke_token(text: str) -> bool:
    """Revoke the token with this id, or this end of it; return whether it was good.
    Raises: NotFoundError; UsageError, it is a token and not an id.
    """
    if text.startswith("soong_tok_"):
        raise UsageError("name the token by its id (tok_…, see `soong tokens list`): a token on a command line is seen")
    async with opened_store("revoke a token") as store:
        known = [token.id for token in await store.access.tokens() if token.id.endswith(text) and len(text) >= 6]
        if len(known) != 1:
            raise NotFoundError("token", text)
        return await store.access.revoke_token(known[0], now_us=SystemClock().now_us())


@asynccontextmanager
async def opened_keys(change: str = "") -> AsyncIterator[KeyRing]:
    """Open the keys; ``change`` is what is about to be done to them, which a person alone may."""
    settings = load_settings()
    async with opened_store(change, settings=settings) as store:
        yield KeyRing(store.keys, settings.key_file, SystemClock(), settings.principal)


async def limit_concurrency(text: str, limit: int) -> None:
    """Set how many steps of a scope run at once; 0 removes the limit. Raises: UsageError, NotFoundError."""
    scope = limit_scope(text)
    async with opened_store() as store:
        if scope.startswith("session:") and limit:
            # A limit of a session that is none would wait for nobody.
            await store.sessions.session(scope.removeprefix("session:"))
        await store.claims.set_concurrency_limits([ConcurrencyLimit(scope, limit)])


async def budget_of(session: str, limit: Budget) -> BudgetState | None:
    """Return the budget of a session, or of the day, with what is charged; None where there is none.

    Without limits ``limit`` changes nothing. Raises: NotFoundError, UsageError.
    """
    from soong.orchestrator.operations.service import find_session  # FastAPI

    async with opened_store() as store:
        scope = session_scope(await find_session(store, session)) if session else DAY
        if limit != NO_BUDGET:
            await store.budgets.set_budget(scope, limit)
        return (await store.budgets.budgets([scope], day=utc_date(time.time_ns() // 1000))).get(scope)


async def messages(*, include_ended: bool) -> list[dict[str, Json]]:
    """Return the messages that wait or were given up, or all, of the last events."""
    async with opened_store() as store:
        notices = await store.outbox.notices(include_ended=include_ended, limit=NOTICES_SHOWN)
    by_message: dict[str, list[Notice]] = defaultdict(list)
    for notice in notices:
        # Notices that are in no message yet are one row for their channel.
        by_message[notice.message_id or f"{notice.channel}/{notice.state.value}"].append(notice)
    return [_message(sorted(one, key=lambda notice: notice.created_us)) for one in by_message.values()]


def _message(notices: Sequence[Notice]) -> dict[str, Json]:
    first = notices[0]
    return {
        "id": first.message_id or None,
        "channel": first.channel,
        "state": first.state.value,
        "events": [notice.event for notice in notices],
        "requests": [notice.request_id for notice in notices if notice.request_id],
        "attempts": first.attempts,
        "due": instant(first.due_us) if first.state is NoticeState.WAITING else None,
        "ended": instant(first.ended_us or None),
        "error": first.error,
    }


async def send_again(message: str, channel: str) -> int:
    """Send a message again that was given up, or those of a channel, or all; return the number of events.
    Raises: NotFoundError.
    """
    from soong.orchestrator.operations.service import fits  # FastAPI

    message_id = ""
    async with opened_store("send notifications again") as store:
        if message:
            given_up = await store.outbox.notices(include_ended=False, limit=10_000)
            known = sorted({one.message_id for one in given_up if one.message_id and fits(one.message_id, message)})
            if len(known) != 1:
                raise NotFoundError("message that was given up", message)
            message_id = known[0]
        return await store.outbox.retry(message_id=message_id, channel=channel, now_us=SystemClock().now_us())


@asynccontextmanager
async def opened_pauses() -> AsyncIterator[Pauses]:
    """Open the pauses of models of the living service. Raises: UsageError, there is none."""
    from soong.orchestrator.client import bootstrap
    from soong.orchestrator.embedded.starter import deployment

    settings = await deployment(load_settings())
    if not settings.redis_url:
        raise UsageError("no service runs in this home, so no model is paused")
    async with bootstrap.opened_pauses(settings) as pauses:
        yield pauses
