"""A permission question as the API shows it, and what of it may be answered by whom (PER-06, PER-13, PER-14)."""

from typing import Any

from pydantic import Field

from soong.orchestrator.approvals.approval import Approval, status_of_question
from soong.orchestrator.approvals.decide import offers_session
from soong.orchestrator.http.authentication import Caller
from soong.orchestrator.schemas.approval import ApprovalDetail, ApprovalSchema
from soong.orchestrator.schemas.base import Schema
from soong.shared.core.clock import rfc3339
from soong.shared.core.errors import InvalidConfigError
from soong.shared.core.jsontext import Json
from soong.shared.core.value import Value
from soong.shared.engine.sessions.session import ApprovalMode, Session
from soong.shared.permissions.access.token import Right
from soong.shared.permissions.policy import Policy, policy_for
from soong.shared.permissions.request import Choice, Question, offered_choices


class Offer(Schema):
    """What the caller of the API may answer."""

    choices: list[Choice] = Field(description="The answers that are offered; none once it is answered.")
    may_answer: bool
    may_not_because: str = Field(description="Why the caller may not answer it; empty when it may.")


class AnswerableApproval(ApprovalSchema, Offer):
    """A permission question. An answer names `input_digest`, so that what was shown is what is answered."""


class AnswerableApprovalDetail(ApprovalDetail, Offer):
    """A permission question with everything that its row and its run's log say."""


class ApprovalView(Value):
    """A question in its session, for one caller. No grant ever covers a folder around ``home``."""

    question: Question
    session: Session
    caller: Caller
    home: str

    @property
    def is_open(self) -> bool:
        """Say whether it waits for its first answer."""
        return self.question.is_pending and self.question.answer is None

    @property
    def choices(self) -> tuple[Choice, ...]:
        """What may be answered; the owner judges a session grant once more by itself (PER-08)."""
        try:
            request = self.question.request
            policy = policy_for(Policy.from_json(self.session.policy), request.identity)
            is_granted = offers_session(policy, request, self.home)
        except InvalidConfigError:
            return (Choice.DENY,)
        return offered_choices(may_grant=is_granted)

    @property
    def refusal(self) -> str:
        """Return why the caller may not answer, whatever the state; empty when it may (PER-13)."""
        if not self.caller.may(Right.APPROVE):
            is_carried = self.caller.token.allows(Right.APPROVE)
            return self.caller.refusal if is_carried else "the token does not carry the right 'approve'"
        session = self.session
        if session.approval_mode is ApprovalMode.DENY:
            return "the session is answered by its policy alone"
        if session.approval_mode is ApprovalMode.PROMPT and session.principal != self.caller.principal:
            return f"the session is attached: only {session.principal!r} answers in it"
        return ""

    def shape(self) -> AnswerableApproval:
        return AnswerableApproval(**ApprovalSchema.fields_of(self.question), **self._offer())

    def detail(self, approval: Approval) -> AnswerableApprovalDetail:
        # How the target is now can be determined where the person is, which need not be this server.
        facts = ApprovalDetail.fields_of_approval(approval) | {"now": None}
        return AnswerableApprovalDetail(**facts, **self._offer())

    def _offer(self) -> dict[str, Any]:
        refusal = self.refusal or ("" if self.is_open else f"it is {status_of_question(self.question).word}")
        return {
            "choices": list(self.choices) if self.is_open else [],
            "may_answer": not refusal,
            "may_not_because": refusal,
        }


def who_answered(question: Question) -> dict[str, Json]:
    """Return by whom, how and when a question was answered or decided, for a later answer (PER-15)."""
    answer, decision = question.answer, question.decision
    told: dict[str, Json] = {"state": str(question.state), "sentence": status_of_question(question).sentence}
    if answer is not None:
        choice = None if answer.choice is None else str(answer.choice)
        told |= {"by": answer.principal, "channel": answer.channel, "at": rfc3339(answer.answered_us), "choice": choice}
    elif decision is not None:
        told |= {"by": decision.principal or decision.author, "channel": "", "at": rfc3339(decision.decided_us)}
        told |= {"choice": str(decision.choice)}
    return told
