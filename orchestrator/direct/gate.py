"""Consent for calls made without a model: policy, then grants, then the one callback, all in this process (PER-05).

The second adapter of ``soong.shared.tools.ports.Gate``. The same process asks and answers here, so nothing is signed;
the content of a question, the effect of an answer and the kinds of denials follow the owner's own rules
(:mod:`soong.orchestrator.approvals.decide`).
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta

from msgspec.structs import replace

from soong.orchestrator.approvals import decide
from soong.orchestrator.approvals.approval import provenance_here
from soong.orchestrator.approvals.decide import UnsignedDecision
from soong.orchestrator.approvals.responders import Lane, answer_by, lane_of
from soong.shared.core import timing
from soong.shared.core.jsontext import Json
from soong.shared.core.timing import Clock
from soong.shared.engine.runs.events import EventType, NewEvent
from soong.shared.engine.sessions.session import Session
from soong.shared.permissions import gate
from soong.shared.permissions.gate import answered_by_hook, check_binding, request_of, verdict_of_policy
from soong.shared.permissions.policy import Policy, PolicyVerdict, judge, with_egress
from soong.shared.permissions.request import Answer, Choice, Decision, PermissionCallback, PermissionRequest
from soong.shared.permissions.rules import CallFacts, Effect, GrantBook
from soong.shared.sandbox.redact import Redactor
from soong.shared.tools.ports import GateCall, Verdict
from soong.shared.tools.result import ErrorType

Record = Callable[[Sequence[NewEvent]], Awaitable[object]]


@dataclass(slots=True)
class DirectGate:
    """The gate of one direct session. ``session.approval_mode`` is none exactly when there is no callback.

    ``env`` names the variables that commands get; ``is_tainted``: whether the run has read texts of strangers.
    Never raises for a refusal. Questions that one session grant would answer are asked one after another (PER-07).
    """

    session: Session
    policy: Policy
    callback: PermissionCallback | None
    channel: str
    record: Record
    clock: Clock
    timeout: timedelta
    decision_ttl: timedelta
    home: str
    env: tuple[str, ...] = ()
    is_tainted: Callable[[], bool] = lambda: False
    redactor: Redactor = field(default_factory=Redactor)
    grants: GrantBook = field(default_factory=GrantBook)
    _turns: dict[Lane, asyncio.Lock] = field(default_factory=dict)

    async def decide(self, call: GateCall) -> Verdict:
        """Say whether the call may run; asking takes as long as the callback takes, up to ``timeout``."""
        facts = replace(CallFacts.of(call), is_tainted=self.is_tainted())
        return with_egress(await self._verdict(call, judge(self.policy, facts)), self.policy, facts)

    async def _verdict(self, call: GateCall, verdict: PolicyVerdict) -> Verdict:
        now_us = self.clock.now_us()
        if verdict.effect is not Effect.ASK:
            settled = gate.settled(call, verdict, self.redactor)
            await self.record((NewEvent(EventType.PERMISSION_DECIDED, settled, now_us),))
            return verdict_of_policy(verdict)
        if call.is_answered:
            return answered_by_hook()
        request = request_of(
            call, self.policy, verdict, token="", redactor=self.redactor, home=self.home, now_us=now_us, env=self.env
        )
        await self.record((gate.asked(request, verdict, call, self.redactor),))
        try:
            async with self._turns.setdefault(lane_of(request), asyncio.Lock()):
                decision = await self._decided(request)
        except asyncio.CancelledError:
            withdrawn = {"request_id": request.id, "tool_call_id": request.tool_call_id, "tool": request.tool}
            data: dict[str, Json] = {**withdrawn, "reason": "its call was cancelled"}
            event = NewEvent(EventType.PERMISSION_WITHDRAWN, data, self.clock.now_us())
            await asyncio.shield(self.record((event,)))
            raise
        return check_binding(decision, request, now_us=self.clock.now_us())

    async def _decided(self, request: PermissionRequest) -> Decision:
        unsigned = await self._unsigned(request)
        now_us, ttl_us = self.clock.now_us(), self.decision_ttl // timedelta(microseconds=1)
        decision = unsigned.decision(request, now_us=now_us, ttl_us=ttl_us)
        await self.record(unsigned.events(decision, self.redactor))
        self.grants.remember(decision)
        return decision

    async def _unsigned(self, request: PermissionRequest) -> UnsignedDecision:
        # The policy has been asked a moment ago, by decide; between owner and worker it is asked twice.
        may_grant = decide.offers_session(self.policy, request, self.home)
        grant = self.grants.covering(request) if may_grant else None
        # A grant was given before anything of strangers was read: it carries nothing out afterwards (PER-21).
        if grant is not None and not (request.is_outward and self.is_tainted()):
            return decide.by_grant(grant)
        if self.callback is None:
            return _nobody(request)
        answer = await self._answer(self.callback, request)
        if answer is None:
            return decide.timed_out(self.timeout.total_seconds())
        return decide.by_answer(self.session, request, answer, may_grant=may_grant)

    async def _answer(self, callback: PermissionCallback, request: PermissionRequest) -> Answer | None:
        """Ask the callback; None when its time ran out. In a task of its own: one that does not end holds nobody."""
        provenance, who = await provenance_here(None), self.session.principal
        asking = asyncio.create_task(
            answer_by(callback, request, principal=who, channel=self.channel, clock=self.clock, provenance=provenance)
        )
        try:
            done, _ = await asyncio.wait({asking}, timeout=self.timeout.total_seconds())
            return asking.result() if done else None
        finally:
            if not asking.done():
                asking.cancel()
                await asyncio.wait({asking}, timeout=timing.SHORT_LIMIT_S)


def _nobody(request: PermissionRequest) -> UnsignedDecision:
    if request.is_dangerous or request.risk == "critical":
        hint = "no rule can say yes to it; call it where a person or a callback can be asked"
    else:
        hint = "no rule allows it; add one, for example --allow, or call it where somebody can be asked"
    reason = f"{request.risk_summary}; nobody is there to be asked and {hint}"
    return UnsignedDecision(Choice.DENY, "system", reason=reason, error=ErrorType.PERMISSION_NO_CALLBACK)
