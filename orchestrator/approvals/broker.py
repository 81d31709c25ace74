"""The broker: the one place where questions of an owner's sessions become signed decisions (CARD-3, PER-01).

Owns a :class:`SessionApprovals` for each session that has questions or grants. A look goes over the pending rows and
tries five rules in order: the request is not proven by its run, the policy denies it by now, a grant covers it, it has
an answer, its time has run out. People are shown one question at a time of those that one session grant would answer (a
lane). Grants and deadlines are kept in memory; everything else is in rows. A successor of a dead owner asks the same
questions under the same ids, reads the stored answers, and has none of its grants.

A worker that has turned bad can raise as many questions as its database takes. A person is shown a bounded number of
them, and none holds back the questions of others (threat 15).
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Final

import msgspec

from soong.orchestrator.approvals import decide
from soong.orchestrator.approvals.decide import UnsignedDecision
from soong.orchestrator.approvals.deployment_key import DeploymentKey
from soong.orchestrator.approvals.responders import Lane, lane_of
from soong.shared.core import timing
from soong.shared.core.errors import (
    ANSWERED,
    AlreadyDecidedError,
    InvalidConfigError,
    NotFoundError,
    NotOwnerError,
    SoongError,
    UnavailableError,
)
from soong.shared.core.foreign import words_of
from soong.shared.core.jsontext import JsonObject
from soong.shared.core.log import get_logger
from soong.shared.core.settings import Settings
from soong.shared.core.timing import Clock
from soong.shared.core.value import Value
from soong.shared.engine.runs.record import RunStatus
from soong.shared.engine.sessions.session import ApprovalMode, Ownership, Responder, Session
from soong.shared.engine.tasks.spec import TaskStatus
from soong.shared.engine.wire.notifier import Notifier
from soong.shared.permissions.gate import facts_of
from soong.shared.permissions.policy import Policy, policy_for
from soong.shared.permissions.request import Answer, Decision, PermissionRequest
from soong.shared.permissions.rules import Grant, GrantBook
from soong.shared.permissions.signing import check_proof
from soong.shared.permissions.store import ConsentStore, DecisionReceipt, OpenQuestions
from soong.shared.sandbox.redact import Redactor
from soong.shared.storage.store import Store

log = get_logger(__name__)

MAX_OPEN: Final = 100
"""Questions that one run may have open: as many as reading calls of one turn may ever run at once."""
MAX_READ: Final = 2_000
"""Questions of a session that one look reads, the oldest; what lies behind them is seen once those are closed."""


@dataclass(slots=True)
class QuestionLimiter:
    """Closes a run's questions beyond the limit. Keeps such runs for its own life: they ask nothing new."""

    store: ConsentStore
    clock: Clock
    flooding: set[str] = field(default_factory=set)

    async def bounded(
        self, ownership: Ownership, found: OpenQuestions, shown: Mapping[str, object]
    ) -> Sequence[PermissionRequest]:
        """Return the questions that stay, in their order; ``shown`` are those that the broker has already.

        Raises: NotOwnerError.
        """
        pending = found.pending
        by_run: dict[str, list[PermissionRequest]] = {}
        for request in pending:
            by_run.setdefault(request.identity.run_id, []).append(request)
        gone: set[str] = set()
        for run_id, asked in by_run.items():
            if run_id in self.flooding or len(asked) > MAX_OPEN:
                kept = self._kept(found.tokens[run_id], run_id, asked, shown)
                closed = await self.store.drop_excess(ownership, run_id, kept, now_us=self.clock.now_us())
                if closed:
                    log.error("questions_dropped", session=ownership.session_id, run=run_id, closed=closed)
                gone |= {request.id for request in asked} - set(kept)
        return [request for request in pending if request.id not in gone] if gone else pending

    def _kept(
        self, token: str, run_id: str, asked: Sequence[PermissionRequest], shown: Mapping[str, object]
    ) -> Sequence[str]:
        """Return the ids of those that stay: of a run that floods what is shown, else the oldest that it proved."""
        if run_id in self.flooding:
            return [request.id for request in asked if request.id in shown]
        proven = [request.id for request in asked if check_proof(token, request)]
        if len(proven) > MAX_OPEN:
            self.flooding.add(run_id)  # not for what others raised in its name
        return proven[:MAX_OPEN]


@dataclass(slots=True)
class OpenQuestion:
    """A question as it is remembered between two looks at the rows."""

    run_id: str
    asked_s: float | None = None
    """When its turn came."""
    attended_s: float | None = None
    """When somebody was there to see it."""


@dataclass(slots=True)
class Look:
    """One look at one question. ``may_grant``: a session grant may be given or used, by the policy of this look."""

    session: Session
    request: PermissionRequest
    entry: OpenQuestion
    may_grant: bool = False


class ApprovalContext(Value):
    """The dependencies of every session's broker."""

    store: Store
    notifier: Notifier
    key: DeploymentKey
    clock: Clock
    settings: Settings
    owner_id: Callable[[], str]
    home: str = msgspec.field(default_factory=lambda: str(Path.home()))
    redactor: Redactor = msgspec.field(default_factory=Redactor)
    show_cancelled: Callable[[str, str], None] | None = None
    """Shows that a run was cancelled, by its id and a worker's node name. Blocking. Raises: UnavailableError."""

    async def sign(self, decision: Decision) -> Decision:
        """Sign with the key of the moment, which is in the table before anybody can read what it signed."""
        return (await self.key.current()).sign(decision)

    async def tell_unheld(self, run_id: str) -> None:
        """Show that a run whose question is gone was cancelled, if it was. Best effort, as all events are.

        Raises: UnavailableError of the store.
        """
        if self.show_cancelled is None or (await self.store.runs.run(run_id)).status is not RunStatus.CANCELLED:
            return
        workers = await self.store.sessions.workers()
        if not workers:
            return  # Flower would list a worker that does not exist
        try:
            await asyncio.to_thread(self.show_cancelled, run_id, workers[0].node_name)
        except UnavailableError as error:
            log.warning("flower_events_unsent", error=str(error))


@dataclass(slots=True)
class Presence:
    """The responders of one session as its owner sees them. A beat that has not moved for the lease is away."""

    lease: timedelta
    _seen: dict[str, tuple[int, float]] = field(default_factory=dict)

    def observe(self, responders: Sequence[Responder], now_s: float) -> tuple[bool, frozenset[str]]:
        """Take the current rows; return whether anybody is there, and the ids of those that are away."""
        for responder in responders:
            beat, _ = self._seen.get(responder.id, (-1, 0.0))
            if responder.beat != beat:
                self._seen[responder.id] = (responder.beat, now_s)
        self._seen = {responder.id: self._seen[responder.id] for responder in responders}
        lease_s = self.lease.total_seconds()
        away = frozenset(name for name, (_, moved_at) in self._seen.items() if now_s - moved_at >= lease_s)
        return len(away) < len(self._seen), away


@dataclass(slots=True)
class SessionApprovals:
    """The questions of one session under one ownership. Its task lives while there are any."""

    context: ApprovalContext
    session_id: str
    epoch: int | None = None
    presence: Presence = field(init=False)
    floods: QuestionLimiter = field(init=False)
    grants: GrantBook = field(default_factory=GrantBook)
    open: dict[str, OpenQuestion] = field(default_factory=dict)
    answers: Mapping[str, Answer] = field(default_factory=dict)
    """Those of the pending requests at the last look, by request."""
    tokens: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Those of the runs with open questions at the last look, by run."""
    task: asyncio.Task[None] | None = None
    woken: asyncio.Event = field(default_factory=asyncio.Event)
    is_attended: bool = False
    away_since_s: float = 0.0
    policy: Policy = field(default_factory=Policy)
    policy_row: JsonObject | None = None
    """The policy that was read last, as what it is stored."""
    looks: int = 0
    """Looks that have ended, well or badly."""

    def __post_init__(self) -> None:
        self.floods = QuestionLimiter(self.context.store.consent, self.context.clock)
        self.presence = Presence(timedelta(seconds=self.context.settings.responder_lease_s))

    def wake(self) -> None:
        """Look soon; begin to, if nobody does."""
        self.woken.set()
        if self.task is None or self.task.done():
            self.away_since_s = self.context.clock.monotonic_s()
            self.task = asyncio.get_running_loop().create_task(self._run())

    @property
    def is_idle(self) -> bool:
        """Say whether nothing is left to remember."""
        is_remembering = self.open or len(self.grants) or self.floods.flooding
        return not is_remembering and (not self.task or self.task.done())

    async def close(self) -> None:
        if self.task is not None:
            self.task.cancel()
            await asyncio.gather(self.task, return_exceptions=True)
        self.open.clear()

    async def _run(self) -> None:
        while await self._look_safely():
            with suppress(TimeoutError):
                async with asyncio.timeout(timing.POLL_ROWS_S):
                    await self.woken.wait()

    async def _look_safely(self) -> bool:
        """Look once; say whether there is anything to come back for."""
        self.woken.clear()
        try:
            await self._look()
        except (NotOwnerError, NotFoundError) as error:
            log.info("session_approvals_left", session=self.session_id, reason=str(error))
            self.open.clear()
            self.grants, self.epoch = GrantBook(), None
            return False
        except UnavailableError as error:  # the questions wait where they are
            log.warning("session_approvals_unanswered", session=self.session_id, error=str(error))
            return True
        except Exception:  # a fault of ours must not end the polls of a session's questions
            log.exception("approvals_poll_failed", session=self.session_id)
            return True
        finally:
            self.looks += 1
        return bool(self.open) or self.woken.is_set()

    async def _look(self) -> None:
        """Settle what can be settled now, and see that the first of each lane is being asked."""
        found = await self.context.store.consent.open_questions(self.session_id, limit=MAX_READ)
        if found is not None:
            row = found.session
            self.epoch = row.owner_epoch if self.epoch is None else self.epoch
            # Grants belong to one ownership and die with it.
            if row.owner_id != self.context.owner_id() or row.owner_epoch != self.epoch or row.is_closed:
                raise NotOwnerError(self.session_id, self.epoch)
            if found.has_orphans:  # first: a responder that is let go may read at once why
                await self.context.store.consent.withdraw_orphans(self.session_id, now_us=self.context.clock.now_us())
                await self.context.notifier.notify_session(self.session_id)
        pending_ids = {request.id for request in (found.pending if found else ())}
        for request_id in self.open.keys() - pending_ids:
            await self.context.tell_unheld(self.open.pop(request_id).run_id)
        if found is None:
            return
        session = found.session
        self.answers, self.tokens = found.answers, found.tokens
        pending = await self.floods.bounded(session.ownership, found, self.open)
        lanes: dict[Lane, list[PermissionRequest]] = {}
        for request in pending:
            self.open.setdefault(request.id, OpenQuestion(request.identity.run_id))
            lanes.setdefault(lane_of(request), []).append(request)
        if session.approval_mode is ApprovalMode.PROMPT:
            await self._observe(found.responders)
        # At once: what is decided at once is written together.
        await asyncio.gather(*(self._serve_safely(session, lane) for lane in lanes.values()))

    async def _serve_safely(self, session: Session, lane: Sequence[PermissionRequest]) -> None:
        """Serve a lane; what is wrong with one of its questions does not hold back the other lanes."""
        try:
            await self._serve(session, lane)
        except (NotOwnerError, UnavailableError):
            raise
        except Exception as error:
            values = {"session": self.session_id, "tool": lane[0].tool, "error": words_of(error)}
            log.error("question_failed", **values, exc_info=not isinstance(error, SoongError))

    async def _serve(self, session: Session, lane: Sequence[PermissionRequest]) -> None:
        """Settle a lane in order, each question by the first rule that applies, or it stays open.

        Its first open question is shown; an answer to one behind it counts as well.
        """
        is_behind = False
        for request in lane:
            if is_behind and request.id not in self.answers:
                continue
            look = Look(session, request, self.open[request.id])
            for rule in (self._unproven, self._by_policy, self._by_grant, self._by_answer, self._too_late):
                if (unsigned := await rule(look)) is not None:
                    await self._close(session, request, unsigned)
                    break
            else:
                is_behind = session.approval_mode is not ApprovalMode.INBOX

    async def _unproven(self, look: Look) -> UnsignedDecision | None:
        if check_proof(self.tokens[look.entry.run_id], look.request):
            return None
        log.error("forged_request", request=look.request.id, run=look.entry.run_id)
        return decide.forged()

    async def _by_policy(self, look: Look) -> UnsignedDecision | None:
        try:
            if self.policy_row != look.session.policy:
                self.policy = Policy.from_json(look.session.policy)
                self.policy_row = look.session.policy
            policy = policy_for(self.policy, look.request.identity)
        except InvalidConfigError as error:
            return decide.failed(f"the session's policy cannot be read: {error}")
        look.may_grant = decide.offers_session(policy, look.request, self.context.home)
        return decide.by_policy(look.session, policy, look.request)

    async def _by_grant(self, look: Look) -> UnsignedDecision | None:
        """A grant answers, but not what a tainted run would carry out (PER-21)."""
        grant = self.grants.covering(look.request) if look.may_grant else None
        if grant is None:
            return None
        is_outward = facts_of(look.request).is_outward
        if is_outward and await self.context.store.runs.is_tainted(look.request.identity.run_id):
            return None
        return decide.by_grant(grant)

    async def _by_answer(self, look: Look) -> UnsignedDecision | None:
        if (answer := self.answers.get(look.request.id)) is None:
            return None
        return decide.by_answer(look.session, look.request, answer, may_grant=look.may_grant)

    async def _too_late(self, look: Look) -> UnsignedDecision | None:
        """The question is shown from now on, and is decided without an answer when its time has run out."""
        request, entry = look.request, look.entry
        if entry.asked_s is None:
            entry.asked_s = self.context.clock.monotonic_s()
            await self.context.notifier.notify_session(self.session_id)
        unsigned = self._timed_out(look.session, entry, entry.asked_s)
        if unsigned is None:
            return None
        if not await self._is_waited_for(request):
            # Its run is paused or changing hands: the time for an answer begins when somebody waits for it again.
            entry.asked_s = entry.attended_s = None
            return None
        return unsigned

    async def _is_waited_for(self, request: PermissionRequest) -> bool:
        """Say whether its run waits for it: with a slot, or parked in a running task."""
        store = self.context.store
        run = await store.runs.run(request.identity.run_id)
        if run.status is not RunStatus.PARKED:
            return run.status is RunStatus.RUNNING
        return (await store.tasks.task(request.identity.task_id)).status is TaskStatus.RUNNING

    def _timed_out(self, session: Session, entry: OpenQuestion, asked_s: float) -> UnsignedDecision | None:
        if session.approval_mode is ApprovalMode.INBOX:
            return None
        now_s, settings = self.context.clock.monotonic_s(), self.context.settings
        if self.is_attended:
            entry.attended_s = now_s if entry.attended_s is None else entry.attended_s
            is_late = now_s - entry.attended_s >= settings.permission_timeout_s
            return decide.timed_out(settings.permission_timeout_s) if is_late else None
        is_alone = now_s - max(asked_s, self.away_since_s) >= settings.responder_wait_s
        return decide.no_callback(settings.responder_wait_s) if is_alone else None

    async def _close(self, session: Session, request: PermissionRequest, unsigned: UnsignedDecision) -> None:
        """Write the signed decision, remember a grant, tell the worker and the clients."""
        store, now_us = self.context.store, self.context.clock.now_us()
        ttl_us = round(self.context.settings.decision_ttl_s * 1_000_000)
        decision = await self.context.sign(unsigned.decision(request, now_us=now_us, ttl_us=ttl_us))
        try:
            decided = await store.consent.decide(
                session.ownership,
                decision,
                state=unsigned.state,
                events=unsigned.events(decision, self.context.redactor),
                now_us=now_us,
                if_unanswered=unsigned.if_unanswered,
            )
        except AlreadyDecidedError as error:
            if error.state == ANSWERED:  # the next look reads the answer
                self.woken.set()
                return
            log.info("decided_already", request=request.id, state=error.state)
            run = await store.runs.run(request.identity.run_id)
            decided = DecisionReceipt(was_parked=False, worker_id=run.worker_id)
        else:
            self.grants.remember(decision)
        self.open.pop(request.id, None)
        if decided.worker_id:
            await self.context.notifier.permission_decided(request.id, decided.worker_id)
        if decided.was_parked:
            await self.context.notifier.notify_owners()
        await self.context.notifier.notify_session(self.session_id)

    async def _observe(self, responders: Sequence[Responder]) -> None:
        now_s = self.context.clock.monotonic_s()
        is_attended, away = self.presence.observe(responders, now_s)
        if self.is_attended and not is_attended:
            self.away_since_s = now_s
        self.is_attended = is_attended
        for responder_id in away:
            await self.context.store.sessions.detach_responder(responder_id)


class ApprovalBroker:
    """The broker of one owner. ``review`` may be called as often as one likes; nothing in it waits for people."""

    def __init__(self, context: ApprovalContext) -> None:
        self._context = context
        self._sessions: dict[str, SessionApprovals] = {}

    async def review(self, session_ids: Sequence[str]) -> None:
        """Look at the pending questions of these sessions, in tasks of the broker's own."""
        await self._context.key.current()
        self._sessions = {name: broker for name, broker in self._sessions.items() if not broker.is_idle}
        for session_id in session_ids:
            self._of(session_id).wake()

    def grants(self, session_id: str) -> Sequence[Grant]:
        """Return what has been allowed for the session, for showing."""
        return tuple(self._of(session_id).grants)

    async def close(self) -> None:
        """End every task; questions stay pending for a successor."""
        brokers, self._sessions = list(self._sessions.values()), {}
        for broker in brokers:
            await broker.close()

    def _of(self, session_id: str) -> SessionApprovals:
        return self._sessions.setdefault(session_id, SessionApprovals(self._context, session_id))
