"""A program's callback as the responder of its session: asked one question at a time, each answer is a row (PER-13).

The session's owner decides what an answer is worth, and signs.
"""

import asyncio
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field

from soong.orchestrator.approvals.decide import by_policy
from soong.orchestrator.approvals.responders import ResponderLease, answer_by, insert_answer, lane_of
from soong.orchestrator.client.responder import QuestionResponder, cancelled
from soong.orchestrator.operations.authentication import Caller
from soong.orchestrator.operations.context import ServiceParts
from soong.orchestrator.operations.feeds import Following
from soong.shared.core.errors import UnavailableError
from soong.shared.core.foreign import words_of
from soong.shared.core.log import get_logger
from soong.shared.engine.sessions.session import Session
from soong.shared.permissions.access.token import Right
from soong.shared.permissions.policy import Policy, policy_for
from soong.shared.permissions.request import PermissionCallback, PermissionRequest, Provenance, Question

log = get_logger(__name__)


@dataclass
class ProgramResponder(QuestionResponder[PermissionRequest]):
    """The callback of one session in this process. :meth:`run` keeps it attached."""

    service: ServiceParts
    caller: Caller
    session: Session
    callback: PermissionCallback
    _following: Following[Sequence[Question]] = field(init=False)

    async def run(self) -> None:
        """Answer until cancelled; questions then stay open. A database that is away is waited for.

        Raises: ProblemError (forbidden) when a run started this process; nobody was asked anything.
        """
        self.caller.require(Right.APPROVE)
        client, session_id = self.service.client, self.session.id
        lease_s = client.settings.responder_lease_s
        lease = ResponderLease(
            client.store.sessions, client.notifier, self.caller.principal, self.caller.channel, lease_s
        )
        lease.attend([session_id])
        beating = asyncio.create_task(lease.run())
        try:
            with self.service.feeds.follow(
                ("waiting", session_id),
                lambda: client.store.consent.questions(session_id=session_id),
                lambda: self.service.subscriptions.session(session_id),
                is_quick=True,
            ) as self._following:
                await super().run()
        finally:
            await cancelled(beating)

    async def _poll(self) -> Mapping[str, PermissionRequest]:
        while True:
            try:
                found = await self._following.next()
            except UnavailableError:
                continue
            # The owner closes what no run has proven.
            asked = [one.request for one in found if one.is_proven and one.answer is None]
            self._busy = {lane_of(one.request) for one in found if one.is_proven and one.answer is not None}
            return {one.id: one for one in asked if not self._is_ruled(one)}

    def _is_ruled(self, request: PermissionRequest) -> bool:
        """Whether the session's policy refuses what is asked: its owner says so, and nobody is to be asked."""
        policy = policy_for(Policy.from_json(self.session.policy), request.identity)
        return by_policy(self.session, policy, request) is not None

    def _lane(self, question: PermissionRequest) -> Hashable:
        return lane_of(question)

    async def _answer(self, question: PermissionRequest) -> None:
        caller = self.caller
        answer = await answer_by(
            self.callback,
            question,
            principal=caller.principal,
            channel=caller.channel,
            clock=self.service.client.clock,
            provenance=Provenance() if caller.peer is None else caller.peer.provenance,
        )
        self._gave(question.id, question, answer.choice)
        try:
            await insert_answer(self.service.store.consent, answer)
        except Exception as error:  # noqa: BLE001  # asked again it would fail again: the owner ends the question by time
            log.error("answer_refused", request=question.id, error=words_of(error).partition("\n")[0])
        else:
            await self.service.client.notifier.permission_raised(question.id, self.session.id)
