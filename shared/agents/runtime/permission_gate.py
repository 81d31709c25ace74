"""Permission for the calls of a worker: policy at once, everything else by asking the session's one callback.

A **gate** belongs to one claimed run. It asks by writing a request row under the run's fence, and believes nothing but
a signed decision that fits the call. The one **inbox** of the process waits for the decisions of all its gates: hints
wake it, and it reads the rows at least every second, so that a lost hint costs a second and never an answer. Nothing is
taken from the content of a hint but which row to read.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import msgspec
from msgspec.structs import replace

from soong.shared.agents.runtime.call_log import StopSignal
from soong.shared.core import timing
from soong.shared.core.errors import ForgedError, SoongError, UnavailableError
from soong.shared.core.jsontext import JsonObject, digest
from soong.shared.core.log import get_logger
from soong.shared.core.timing import Clock
from soong.shared.core.value import Value
from soong.shared.engine.runs.events import EventType, NewEvent
from soong.shared.engine.runs.store import RunStore
from soong.shared.engine.wire.notifier import Notifier, Subscriber, Subscription
from soong.shared.permissions import gate
from soong.shared.permissions.gate import (
    answered_by_hook,
    check_binding,
    has_expired,
    request_of,
    stale,
    verdict_of_policy,
    withdrawn,
)
from soong.shared.permissions.policy import Policy, PolicyVerdict, judge, with_egress
from soong.shared.permissions.request import Decision, PermissionRequest
from soong.shared.permissions.rules import CallFacts, Effect
from soong.shared.permissions.signing import check_signature
from soong.shared.permissions.store import ClosedQuestion, ConsentStore
from soong.shared.sandbox.redact import Redactor
from soong.shared.tools.limits import answer_kept
from soong.shared.tools.ports import GateCall, Verdict

log = get_logger(__name__)


@dataclass(slots=True)
class DecisionInbox:
    """Waits for the decisions of all gates of one worker process. One task, alive while somebody waits."""

    store: ConsentStore
    subscriber: Subscriber
    worker_id: str
    _waiting: dict[str, list[asyncio.Future[ClosedQuestion]]] = field(default_factory=dict)
    """By request; each who waits has a future of its own. Two lives of one run wait for the same request, when one of
    them has not noticed yet that its lease is gone."""
    _ear: Subscription | None = None
    _ear_of: str = ""
    _task: asyncio.Task[None] | None = None

    async def settled(self, request_id: str) -> ClosedQuestion:
        """Wait until the request is closed; return how."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[ClosedQuestion] = loop.create_future()
        self._waiting.setdefault(request_id, []).append(future)
        try:
            if self._task is None or self._task.done():
                self._task = loop.create_task(self._run())
            await self._poll(request_id)
            return await future
        finally:
            # Stop looking for a request that nobody waits for any more.
            others = [one for one in self._waiting.pop(request_id, ()) if one is not future]
            if others:
                self._waiting[request_id] = others

    async def close(self) -> None:
        """Stop listening; waiting calls are cancelled."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        waiting, self._waiting = self._waiting, {}
        for future in (one for futures in waiting.values() for one in futures):
            future.cancel()
        await self._hang_up()

    async def _run(self) -> None:
        try:
            await self._listen()
        except Exception as error:  # waiting gates must get the error that ended the inbox
            log.exception("inbox_failed")
            for request_id in list(self._waiting):
                self._settle(request_id, UnavailableError(f"decisions cannot be heard: {error}"))

    async def _listen(self) -> None:
        loop = asyncio.get_running_loop()
        due_s = loop.time() + timing.POLL_ROWS_S
        while self._waiting:
            if self._ear is None or self._ear_of != self.worker_id:  # a new incarnation has a stream of its own
                await self._hang_up()
                self._ear, self._ear_of = await self.subscriber.subscribe_decisions(self.worker_id), self.worker_id
                due_s = loop.time()  # questions closed before the subscription are read from rows
            left_s = due_s - loop.time()
            heard: Sequence[str] = await self._ear.wait(left_s) if left_s > timing.TICK_S else ()
            if "" in heard or due_s - loop.time() <= timing.TICK_S:
                due_s = loop.time() + timing.POLL_ROWS_S
                heard = [*heard, *await self._closed()]
            for request_id in heard:
                if request_id in self._waiting:
                    await self._poll(request_id)

    async def _closed(self) -> Sequence[str]:
        """Return which requests are not pending any more: one read for all, however many wait."""
        waiting = list(self._waiting)
        if len(waiting) <= 1:
            return waiting
        try:
            pending = await self.store.still_pending(waiting)
        except UnavailableError as error:
            log.warning("decisions_unanswered", error=str(error))
            return ()
        return [request_id for request_id in waiting if request_id not in pending]

    async def _poll(self, request_id: str) -> None:
        try:
            settled = await self.store.settled(request_id)
        except UnavailableError as error:
            log.warning("decision_unanswered", request=request_id, error=str(error))
            return
        except SoongError as error:
            self._settle(request_id, error)
            return
        if settled is not None:
            self._settle(request_id, settled)

    def _settle(self, request_id: str, outcome: ClosedQuestion | SoongError) -> None:
        for future in self._waiting.pop(request_id, ()):
            if future.done():
                continue
            if isinstance(outcome, SoongError):
                future.set_exception(outcome)
            else:
                future.set_result(outcome)

    async def _hang_up(self) -> None:
        if self._ear is not None:
            subscription, self._ear = self._ear, None
            await subscription.close()


KEY_ENDED = frozenset({"revoked_key", "retired_key"})
"""Problems of a decision whose call may ask again at once: only its key is at fault."""

Note = Callable[[str, JsonObject], Awaitable[None]]
"""Keeps an event of the run back, to be written with the next."""


async def _nothing_kept() -> None:
    """Nothing is kept back."""


class GateStore(Protocol):
    """The store's port for a gate: questions and decisions, and the run's log for security events."""

    @property
    def consent(self) -> ConsentStore: ...

    @property
    def runs(self) -> RunStore: ...


class RunGate(Value):
    """The gate of one claimed run; implements ``soong.shared.tools.ports.Gate``. ``token`` proves its questions.

    ``policy`` is the session's, narrowed by the worker's own. ``note`` keeps an event back until the run writes next: a
    verdict of the policy alone is recorded without a transaction of its own. ``env`` names what commands get. Never
    raises for a refusal. Raises LeaseLostError when the run is no longer ours, and UnavailableError when the question
    cannot be written.
    """

    UNSHOWN = frozenset({"token"})

    store: GateStore
    notifier: Notifier
    inbox: DecisionInbox
    clock: Clock
    policy: Policy
    token: str
    redactor: Redactor = msgspec.field(default_factory=Redactor)
    home: str = msgspec.field(default_factory=lambda: str(Path.home()))
    interruption: StopSignal = msgspec.field(default_factory=StopSignal)
    env: tuple[str, ...] = ()
    note: Note | None = None
    flush: Callable[[], Awaitable[None]] = _nothing_kept
    """Writes the events that are kept back, before a question."""
    on_asked: Callable[[str], object] | None = None
    """Gets the tool of each call that waits for consent."""
    on_settled: Callable[[], object] | None = None
    """Called when such a call waits no more, while its run continues here."""
    waiting: Callable[[str], AbstractContextManager[object]] = nullcontext
    """Is entered for as long as a call waits for a request: its run may park."""
    unknown: Sequence[JsonObject] = ()
    """The run's effects of which nobody knows the end, as far as they are known by now: every question tells them."""

    async def decide(self, call: GateCall) -> Verdict:
        """Say whether the call may run; asking may take as long as a person takes."""
        facts = CallFacts.of(call)
        if facts.is_outward:  # whether the run is tainted is asked only where that changes something
            facts = replace(facts, is_tainted=await self.store.runs.is_tainted(call.identity.run_id))
        return with_egress(await self._verdict(call, judge(self.policy, facts)), self.policy, facts)

    async def _verdict(self, call: GateCall, verdict: PolicyVerdict) -> Verdict:
        if verdict.effect is not Effect.ASK:
            if self.note is not None:
                await self.note(EventType.PERMISSION_DECIDED, gate.settled(call, verdict, self.redactor))
            return verdict_of_policy(verdict)
        if call.is_answered:
            return answered_by_hook()
        if not await answer_kept():
            return withdrawn("the answer that made this call broke off")
        answered = await self._asked(call, verdict)
        # One that a former life of the run was given and did not use in time; the next is as fresh as can be.
        return answered or await self._asked(call, verdict) or stale("the permission given has expired; call again")

    async def _asked(self, call: GateCall, verdict: PolicyVerdict) -> Verdict | None:
        """Ask and return the verdict on the call; None when the answer is too old and must be asked again."""
        request = await self._raise(call, verdict)
        decision = None
        try:
            settled = await self._until_settled(request, is_under_way=call.is_under_way)
            decision = settled.decision
            if decision is None:
                return withdrawn("the question was withdrawn before anybody answered it; call again for a new question")
            check_signature(decision, settled.key)
            # The input is digested again: the call runs with the decided input, not with an older one.
            as_it_runs = replace(request, input_digest=digest(call.permission_input))
            now_us = self.clock.now_us()
            answered = check_binding(decision, as_it_runs, now_us=now_us)
        except ForgedError as error:
            await self._report(request, decision, error)
            if error.what in KEY_ENDED:
                await self._expire(request)
                return None
            return stale(f"{error}; it was not used")
        if has_expired(decision, now_us=now_us):
            late = ForgedError(f"decision {decision.id!r} expired before it was used", what="expired_decision")
            await self._report(request, decision, late)
            is_old = decision.decided_us <= request.created_us
            if is_old and await self._expire(request):
                return None
        return answered

    async def _expire(self, request: PermissionRequest) -> bool:
        """Let an expired decision go, unless it was used; its question is closed and another may be asked."""
        run_id, now_us = request.identity.run_id, self.clock.now_us()
        return await self.store.consent.expire_decision(run_id, request.tool_call_id, request.fence, now_us=now_us)

    async def _raise(self, call: GateCall, verdict: PolicyVerdict) -> PermissionRequest:
        """Ask, or take up what a former life of this run asked; return the question."""
        now_us = self.clock.now_us()
        fresh = request_of(
            call,
            self.policy,
            verdict,
            token=self.token,
            redactor=self.redactor,
            home=self.home,
            now_us=now_us,
            env=self.env,
            unknown_effects=self.unknown,
        )
        event = gate.asked(fresh, verdict, call, self.redactor)
        try:
            await self.flush()
            stored = await self.store.consent.raise_request(fresh, events=(event,), now_us=now_us)
            await self.notifier.permission_raised(stored, call.identity.session_id)
        except asyncio.CancelledError:
            await self._let_go(fresh, is_under_way=call.is_under_way)  # others may see it already
            raise
        if self.on_asked is not None:
            self.on_asked(call.definition.name)
        return replace(fresh, id=stored)

    async def _until_settled(self, request: PermissionRequest, *, is_under_way: bool) -> ClosedQuestion:
        """Wait for the end of a question; a run whose call is under way does not park meanwhile."""
        try:
            with nullcontext() if is_under_way else self.waiting(request.id):
                settled = await self.inbox.settled(request.id)
        except asyncio.CancelledError:
            await self._let_go(request, is_under_way=is_under_way)
            raise
        if self.on_settled is not None:
            self.on_settled()
        return settled

    async def _let_go(self, request: PermissionRequest, *, is_under_way: bool) -> None:
        """Withdraw the question of a cancelled call, unless its run continues elsewhere."""
        if is_under_way or not self.interruption.goes_on_elsewhere:
            # Shielded: a second cancellation must not keep the question open without an asker (PER-15).
            await asyncio.shield(self._withdraw(request))

    async def _withdraw(self, request: PermissionRequest) -> None:
        try:
            await self.store.consent.withdraw(
                request.identity.run_id,
                request.tool_call_id,
                request.fence,
                reason="its call was cancelled",
                now_us=self.clock.now_us(),
            )
        except SoongError as error:
            # The lease is gone or the database away: the owner closes what its run's end leaves behind.
            log.info("withdraw_left_to_owner", request=request.id, error=str(error))
            return
        await self.notifier.permission_raised(request.id, request.identity.session_id)

    async def _report(self, request: PermissionRequest, decision: Decision | None, error: ForgedError) -> None:
        """Write down what was refused; nothing of it has been used."""
        decision_id = "" if decision is None else decision.id
        log.error(error.what, request=request.id, decision=decision_id, error=str(error))
        now_us = self.clock.now_us()
        data = {"what": error.what, "request_id": request.id, "decision_id": decision_id, "problem": str(error)}
        event = NewEvent(EventType.SECURITY, data, now_us)
        await self.store.runs.append(request.identity.run_id, request.fence, events=(event,), now_us=now_us)
