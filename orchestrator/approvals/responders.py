"""Responders: the clients that may act as the session's one callback. They answer by a row and never speak to a worker.

Owns the call of a :data:`PermissionCallback`, the insertion of its answer as a row, of which the first wins, and the
presence of a responder in its sessions; the broker judges the answer.
"""

import asyncio
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import assert_never

import msgspec
from msgspec.structs import replace

from soong.shared.core import timing
from soong.shared.core.errors import AlreadyDecidedError, SoongError, UnavailableError
from soong.shared.core.foreign import ForeignError, await_foreign, shown, words_of
from soong.shared.core.identity import new_id
from soong.shared.core.jsontext import JsonObject, canonical, dump, parse_strict
from soong.shared.core.log import get_logger
from soong.shared.core.timing import Clock
from soong.shared.core.value import Value
from soong.shared.engine.sessions.session import ApprovalMode, Responder, Session, SessionStore
from soong.shared.engine.wire.notifier import Notifier
from soong.shared.permissions.request import (
    NO_CALLBACK,
    Answer,
    Choice,
    ElicitationCallback,
    ElicitationRequest,
    PermissionCallback,
    PermissionDecision,
    PermissionRequest,
    Provenance,
)
from soong.shared.permissions.store import ConsentStore
from soong.shared.tools.definition import CANCEL, ElicitationAnswer

log = get_logger(__name__)

MAX_REASON_CHARS = 2_000
MAX_METADATA_BYTES = 16 * 1024


class NoCallbackError(Exception):
    """Raised by a callback that is not there for a question of this kind; the message says so."""


Lane = tuple[str, str]


def lane_of(request: PermissionRequest) -> Lane:
    """Return what questions share that one session grant would answer; they are shown one at a time (PER-07)."""
    return (request.tool, request.scope) if request.offers_session else ("", request.id)


async def answer_by(
    callback: PermissionCallback,
    request: PermissionRequest,
    *,
    principal: str,
    channel: str,
    clock: Clock,
    provenance: Provenance,
) -> Answer:
    """Ask a callback; whatever it does becomes an answer, but for being cancelled from outside.

    ``provenance`` is where the process that holds the callback comes from.
    """
    said = await _ask(callback, replace(request, proof=""))
    reason, now_us = _stored(said.reason), clock.now_us()
    return Answer(
        request.id, said.choice, principal, channel, request.input_digest, now_us, reason, said.metadata, provenance
    )


class _CallbackReply(Value):
    """The reply of a callback; without a choice it failed, and the reason describes the failure."""

    choice: Choice | None
    reason: str
    metadata: JsonObject = msgspec.field(default_factory=dict)


async def _ask(callback: PermissionCallback, request: PermissionRequest) -> _CallbackReply:
    try:
        decision: object = await await_foreign(lambda: callback(request))
    except NoCallbackError as error:
        return _CallbackReply(None, str(error), {NO_CALLBACK: True})
    except ForeignError as error:
        if isinstance(error.original, SystemExit | KeyboardInterrupt):
            raise error.original from None  # the callback's program is this process, and may end it
        if isinstance(error.original, asyncio.CancelledError):
            return _CallbackReply(None, "the callback was cancelled from within")
        return _failed(request, error)
    except Exception as error:  # noqa: BLE001  # a stranger's function: whatever it raises is a failed answer
        return _failed(request, error)
    if not isinstance(decision, PermissionDecision) or not isinstance(decision.choice, Choice):
        return _CallbackReply(None, f"the callback returned {shown(decision)}, not a PermissionDecision")
    try:
        metadata = parse_strict(canonical(dict(decision.metadata)))
    except Exception as error:  # noqa: BLE001  # a mapping of the callback's own: its methods may raise anything
        return _CallbackReply(None, f"the callback's metadata is not a JSON object: {words_of(error)}")
    if not isinstance(metadata, dict) or len(canonical(metadata)) > MAX_METADATA_BYTES:
        return _CallbackReply(None, f"the callback's metadata has more than {MAX_METADATA_BYTES} bytes")
    return _CallbackReply(decision.choice, str(decision.reason), metadata)


def _failed(request: PermissionRequest, error: Exception) -> _CallbackReply:
    words = words_of(error)
    log.warning("callback_failed", request=request.id, error=words)
    return _CallbackReply(None, f"the callback raised {words}")


async def insert_answer(store: ConsentStore, answer: Answer) -> str:
    """Insert an answer, however long the database is away; return "" or the state that came before it."""
    while True:
        try:
            await store.answer(answer)
        except AlreadyDecidedError as error:
            return error.state
        except UnavailableError as error:
            log.warning("answer_unwritten", request=answer.request_id, error=str(error))
            await asyncio.sleep(timing.POLL_ROWS_S)
            continue
        return ""


def _stored(reason: str) -> str:
    clean = reason.encode("utf-8", "replace").decode("utf-8").replace("\0", "")
    return clean if len(clean) <= MAX_REASON_CHARS else f"{clean[:MAX_REASON_CHARS]}…"


def answering(
    permission: PermissionCallback | None, elicitation: ElicitationCallback | None
) -> PermissionCallback | None:
    """Return the callback that has questions of servers answered by ``elicitation``, and all others by the other."""
    if elicitation is None:
        return permission

    async def answer(request: PermissionRequest) -> PermissionDecision:
        if request.takes_words:
            return decision_of(await elicitation(ElicitationRequest.of(request)))
        if permission is None:
            raise NoCallbackError("the session has a callback for what MCP servers ask, and none for permissions")
        return await permission(request)

    return answer


def decision_of(answer: ElicitationAnswer) -> PermissionDecision:
    """Return an answer as it is signed.
    Raises: TypeError, it is something else, or its content is not JSON; ValueError, its content is too long.
    """
    given: object = answer  # of a stranger's function: types are not believed
    if not isinstance(given, ElicitationAnswer) or given.action not in ("accept", "decline", "cancel"):
        raise TypeError(f"{shown(given)} is not an ElicitationAnswer")
    match given.action:
        case "accept":
            words = "" if given.content is None else dump(dict(given.content))
            if len(words) > MAX_REASON_CHARS:
                raise ValueError(f"the content has more than {MAX_REASON_CHARS} characters")
            return PermissionDecision(Choice.ALLOW_ONCE, words)
        case "decline":
            return PermissionDecision(Choice.DENY, given.reason)
        case "cancel":
            return PermissionDecision(Choice.DENY, f"{CANCEL}: {given.reason}" if given.reason else CANCEL)
        case _:
            assert_never(given.action)


def refusal_reason(session: Session, principal: str) -> str:
    """Say why somebody may not answer for a session; empty when they may. The owner checks the same again."""
    if session.approval_mode is ApprovalMode.DENY:
        return "its session is answered by its policy alone"
    if session.approval_mode is ApprovalMode.PROMPT and principal != session.principal:
        return f"its session is answered by {session.principal!r}, and you are {principal!r} (SOONG_PRINCIPAL)"
    return ""


@dataclass(slots=True)
class ResponderLease:
    """The presence of one responder in the sessions that it answers for. ``run`` keeps it until it is cancelled."""

    store: SessionStore
    notifier: Notifier
    principal: str
    channel: str
    lease_s: float
    _wanted: frozenset[str] = frozenset()
    _rows: dict[str, str] = field(default_factory=dict)
    """Responder ids by session."""
    _changed: asyncio.Event = field(default_factory=asyncio.Event)

    def attend(self, session_ids: Iterable[str]) -> None:
        """Be there for exactly these sessions from now on."""
        wanted = frozenset(session_ids)
        if wanted != self._wanted:
            self._wanted = wanted
            self._changed.set()

    async def run(self) -> None:
        """Beat until cancelled; while the database is away it keeps trying."""
        try:
            while True:
                self._changed.clear()
                await self._beat()
                with suppress(TimeoutError):
                    async with asyncio.timeout(self.lease_s / 3):
                        await self._changed.wait()
        finally:
            for row in self._rows.values():
                with suppress(SoongError):
                    await asyncio.shield(self.store.detach_responder(row))

    async def _beat(self) -> None:
        try:
            for session_id in sorted(self._rows.keys() - self._wanted):
                await self.store.detach_responder(self._rows.pop(session_id))
            for session_id in sorted(self._wanted):
                if session_id not in self._rows or not await self.store.beat_responder(self._rows[session_id]):
                    row = self._rows[session_id] = new_id("resp")
                    await self.store.attach_responder(Responder(row, session_id, self.principal, self.channel))
                    await self.notifier.notify_owners([session_id])
        except UnavailableError as error:
            log.warning("responder_beat_unanswered", error=str(error))
