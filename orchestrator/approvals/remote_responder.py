"""The responder in a client of the service: attaches to sessions, shows what waits, inserts what is answered (PER-13).

It reads rows at each notification of the session, and each second. The session's owner notifies its followers when it
asks a question and when it has closed one.
"""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from soong.orchestrator.approvals.approval import check_person, question_of, status_of_question
from soong.orchestrator.approvals.decide import by_policy
from soong.orchestrator.approvals.responders import answer_by, insert_answer, lane_of
from soong.shared.core import timing
from soong.shared.core.clock import Clock, SystemClock
from soong.shared.core.errors import SoongError, UnavailableError
from soong.shared.core.foreign import words_of
from soong.shared.core.ids import new_id
from soong.shared.core.log import get_logger
from soong.shared.core.settings import Settings
from soong.shared.engine.sessions.session import ApprovalMode, Responder, Session
from soong.shared.engine.sessions.store import SessionStore
from soong.shared.engine.wire.notifier import Notifier, NullSubscription, Subscriber, Subscription
from soong.shared.permissions.policy import Policy, policy_for
from soong.shared.permissions.request import Answer, PermissionCallback, PermissionRequest, Provenance, Question
from soong.shared.storage.store import Store

log = get_logger(__name__)


_ScopedLane = tuple[str, str, str]
"""A session's lane."""


class SkipQuestionError(Exception):
    """Raised by a remote callback that wants to be shown another question first; this one stays open."""


class ResponderClosedError(Exception):
    """Raised by a remote callback that can be asked nothing any more, and says why; the question stays open."""


@dataclass(slots=True)
class RemoteResponder:
    """A callback in a client of the service. ``run`` keeps it attached and asks it one question at a time.

    Without a ``session_id`` it answers for every session that its principal may answer for, and attaches to those that
    ask. ``notify`` gets a sentence when a question is answered elsewhere or goes away while it is shown;
    ``on_waiting`` gets all that waits, after each poll.
    """

    store: Store
    notifier: Notifier
    subscriber: Subscriber
    session_id: str
    principal: str
    channel: str
    callback: PermissionCallback
    settings: Settings
    clock: Clock = field(default_factory=SystemClock)
    notify: Callable[[str], None] = lambda _sentence: None
    on_waiting: Callable[[Sequence[PermissionRequest]], None] = lambda _waiting: None
    _shown: PermissionRequest | None = None
    _asking: asyncio.Task[None] | None = None
    _is_over: bool = False
    _answered: set[str] = field(default_factory=set)
    """Pending ones that somebody has answered and the owner has not settled."""
    _said: set[str] = field(default_factory=set)
    """Those of them that were answered here."""
    _put_off: list[str] = field(default_factory=list)
    """Questions that are to be shown after the others, in the order in which they were put off."""
    _lanes: dict[str, _ScopedLane] = field(default_factory=dict)
    _held: dict[_ScopedLane, float] = field(default_factory=dict)
    _sessions: dict[str, Session] = field(default_factory=dict)
    _waiting: tuple[PermissionRequest, ...] = ()
    _provenance: Provenance = field(default_factory=Provenance)
    _judged_by: tuple[Session, Policy] | None = None
    """The session and its policy, where a question may be read before its owner has looked at it."""

    async def run(self) -> None:
        """Answer until cancelled, or until the callback can be asked nothing more; questions then stay open.

        While the database is away it waits.

        Raises:
            StartedByRunError: a run started this process; nobody was asked anything.
        """
        self._provenance = await self._checked_provenance()
        subscription: Subscription = (
            await self.subscriber.subscribe_session(self.session_id) if self.session_id else NullSubscription()
        )
        lease_s = self.settings.responder_lease_s
        attendance = ResponderLease(self.store.sessions, self.notifier, self.principal, self.channel, lease_s)
        attendance.attend([self.session_id] if self.session_id else [])
        attending = asyncio.get_running_loop().create_task(attendance.run())
        try:
            while not self._is_over:
                await self._poll()
                if not self.session_id:
                    attendance.attend(request.identity.session_id for request in self._waiting)
                await self._wait(subscription)
        finally:
            await _cancelled(self._asking, attending)
            await subscription.close()
            left = await self._left() if self._waiting else 0
            if left:
                self.notify(_left_open(left))

    async def _checked_provenance(self) -> Provenance:
        while True:
            try:
                return await check_person(self.store.sessions, "answer")
            except UnavailableError as error:
                log.warning("provenance_unread", error=str(error))
                await asyncio.sleep(timing.POLL_ROWS_S)

    async def _wait(self, subscription: Subscription) -> None:
        """Wait for a notification, the end of the question that is shown, or the next poll."""
        hearing = asyncio.get_running_loop().create_task(_hear(subscription))
        waiting = {hearing, self._asking} if self._asking else {hearing}
        try:
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        finally:
            await _cancelled(hearing)

    async def _poll(self) -> None:
        try:
            questions = await self._questions()
        except UnavailableError as error:
            log.warning("pending_unanswered", error=str(error))
            return
        pending = [question.request for question in questions]
        self._hold_settled(pending)
        self._answered &= {request.id for request in pending}
        self._said &= self._answered
        self._answered |= {question.request.id for question in questions if question.answer is not None}
        self._waiting = tuple(request for request in pending if request.id not in self._answered)
        self.on_waiting(self._waiting)
        await self._take_back()
        if self._shown is None:
            self._show_next(pending)

    async def _left(self) -> int:
        """Return how many questions stay open: what ended with their task, after the last look, does not."""
        try:
            async with asyncio.timeout(timing.POLL_ROWS_S):
                return sum(question.answer is None for question in await self._questions())
        except (UnavailableError, TimeoutError):
            return len(self._waiting)

    async def _questions(self) -> Sequence[Question]:
        """Return what is pending and this responder's to answer, oldest first; the owner closes what is not proven."""
        found = await self.store.consent.questions(session_id=self.session_id)
        questions = [question for question in found if question.is_proven]
        if self.session_id:
            if questions and self._judged_by is None:
                await self._read_policy()
            return questions
        return [question for question in questions if await self._is_ours(question.request)]

    async def _read_policy(self) -> None:
        """Read the session's policy, which never changes. It may be written after its responder has begun."""
        try:
            session = await self.store.sessions.session(self.session_id)
            self._judged_by = session, Policy.from_json(session.policy)
        except UnavailableError:
            raise
        except SoongError as error:  # nothing is shown: its owner refuses all that it asks
            log.warning("policy_unread", session=self.session_id, error=str(error))

    async def _is_ours(self, request: PermissionRequest) -> bool:
        session_id = request.identity.session_id
        if session_id not in self._sessions:
            self._sessions[session_id] = await self.store.sessions.session(session_id)
        return not refusal_reason(self._sessions[session_id], self.principal)

    async def _take_back(self) -> None:
        """Stop showing what has been answered, or what somebody else has settled."""
        if self._asking is not None and self._asking.done():
            self._asking, self._shown = None, None
        shown = self._shown
        if shown is None or shown.id in self._said or any(request.id == shown.id for request in self._waiting):
            return
        await _cancelled(self._asking)
        self._asking, self._shown = None, None
        await self._tell_settled(shown)

    async def _tell_settled(self, request: PermissionRequest) -> None:
        try:
            said = status_of_question(await question_of(self.store.consent, request.id)).sentence
        except SoongError as error:  # it is gone either way
            log.warning("settled_unread", error=str(error))
            said = "it has been settled"
        self.notify(f"the question about {request.tool} was settled elsewhere: {said}")

    def _hold_settled(self, pending: Sequence[PermissionRequest]) -> None:
        """Hold back what is like a question that was settled elsewhere just now: perhaps by a grant for all of them."""
        now_s = asyncio.get_running_loop().time()
        lanes = {request.id: _scoped(request) for request in pending}
        for request_id in self._lanes.keys() - lanes.keys() - self._said:
            self._held.setdefault(self._lanes[request_id], now_s + timing.SETTLE_S)
        self._lanes = lanes
        self._held = {lane: until_s for lane, until_s in self._held.items() if until_s > now_s}

    def _show_next(self, pending: Sequence[PermissionRequest]) -> None:
        """Show the oldest question whose like is not waiting for the owner to act on an answer just given.

        One of those that were put off comes when no other is left.
        """
        busy = set(self._held) | {_scoped(request) for request in pending if request.id in self._answered}
        first: dict[_ScopedLane, PermissionRequest] = {}
        for request in self._waiting:
            first.setdefault(_scoped(request), request)
        free = [request for lane, request in first.items() if lane not in busy]
        self._put_off = [request_id for request_id in self._put_off if any(request_id == one.id for one in free)]
        free.sort(key=lambda one: self._put_off.index(one.id) if one.id in self._put_off else -1)
        self._shown = next((request for request in free if not self._is_ruled(request)), None)
        if self._shown is not None:
            self._asking = asyncio.get_running_loop().create_task(self._answer(self._shown))

    def _is_ruled(self, request: PermissionRequest) -> bool:
        """Say whether the session's policy refuses what is asked: its owner says so, and nobody is to be asked."""
        if self._judged_by is None:
            return bool(self.session_id)
        session, policy = self._judged_by
        return by_policy(session, policy_for(policy, request.identity), request) is not None

    async def _answer(self, request: PermissionRequest) -> None:
        try:
            answer = await answer_by(
                self.callback,
                request,
                principal=self.principal,
                channel=self.channel,
                clock=self.clock,
                provenance=self._provenance,
                passing=(SkipQuestionError, ResponderClosedError),
            )
        except SkipQuestionError:
            self._put_off = [*(one for one in self._put_off if one != request.id), request.id]
            return
        except ResponderClosedError as error:
            self._is_over = True
            self.notify(str(error))
            return
        await self._insert(request, answer)

    async def _insert(self, request: PermissionRequest, answer: Answer) -> None:
        self._answered.add(request.id)
        self._said.add(request.id)
        try:
            state = await insert_answer(self.store.consent, answer)
        except Exception as error:  # noqa: BLE001  # asked again it would fail again: the owner ends the question by time
            words = words_of(error).partition("\n")[0]
            log.error("answer_refused", request=request.id, error=words)  # its first line says it
            self.notify(f"the answer about {request.tool} could not be stored: {words}")
            return
        if state:
            self.notify(f"the question about {request.tool} was already {state}; your answer was not needed")
        elif answer.choice is not None and answer.choice.is_grant:
            self._held[_scoped(request)] = asyncio.get_running_loop().time() + timing.GRACE_S
        await self.notifier.permission_raised(request.id, request.identity.session_id)


def refusal_reason(session: Session, principal: str) -> str:
    """Say why somebody may not answer for a session; empty when they may. The owner checks the same again."""
    if session.approval_mode is ApprovalMode.DENY:
        return "its session is answered by its policy alone"
    if session.approval_mode is ApprovalMode.PROMPT and principal != session.principal:
        return f"its session is answered by {session.principal!r}, and you are {principal!r} (SOONG_PRINCIPAL)"
    return ""


def _scoped(request: PermissionRequest) -> _ScopedLane:
    return (request.identity.session_id, *lane_of(request))


def _left_open(count: int) -> str:
    stay = "1 question stays" if count == 1 else f"{count} questions stay"
    return f"{stay} open; `soong approvals list` shows what waits, `soong approvals allow|deny ID` answers"


async def _hear(subscription: Subscription) -> Sequence[str]:
    return await subscription.wait(timing.POLL_ROWS_S)


async def _cancelled(*tasks: asyncio.Task[Any] | None) -> None:
    """Cancel tasks and wait until they have ended."""
    running = [task for task in tasks if task is not None]
    for task in running:
        task.cancel()
    await asyncio.gather(*running, return_exceptions=True)


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
                    await self._attach(session_id)
        except UnavailableError as error:
            log.warning("responder_beat_unanswered", error=str(error))

    async def _attach(self, session_id: str) -> None:
        row = self._rows[session_id] = new_id("resp")
        await self.store.attach_responder(Responder(row, session_id, self.principal, self.channel))
        await self.notifier.notify_owners([session_id])
