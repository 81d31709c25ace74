"""A permission question as the API shows it, and what of it may be answered by whom (PER-06, PER-13, PER-14)."""

from dataclasses import dataclass

from pydantic import Field

from soong.orchestrator.approvals.approval import Approval, question_json
from soong.orchestrator.approvals.decide import offers_session
from soong.orchestrator.approvals.question_status import status_of_question
from soong.orchestrator.http.authentication import Caller
from soong.orchestrator.http.schemas import AnyObject, Instant, Schema
from soong.shared.core.clock import rfc3339
from soong.shared.core.errors import InvalidConfigError
from soong.shared.core.jsontext import Json, JsonObject
from soong.shared.engine.sessions.session import ApprovalMode, Session
from soong.shared.permissions.access.token import Right
from soong.shared.permissions.policy import Policy, policy_for
from soong.shared.permissions.request import Choice, Question


class IdentitySchema(Schema):
    """Who asks, read from the run's row and never from what the worker said."""

    session_id: str
    run_id: str
    agent_id: str
    role: str
    definition: str
    parent_run_id: str
    parent_agent_id: str
    task_id: str
    step_key: str
    step_title: str
    model: str
    dispatched_by: str = Field(description="Whose submission, retry or dispatch its run comes from.")
    is_foreign: bool = Field(description="That was another side than the session's: no grant or rule answers for it.")


class TargetSchema(Schema):
    kind: str
    shown: str = Field(description="The resolved target: a path, a command, a host.")
    host: str


class AnswerSchema(Schema):
    choice: str | None = Field(description="Null when the responder failed instead of answering.")
    principal: str
    channel: str
    answered: Instant
    reason: str
    input_digest: str
    metadata: AnyObject


class DecisionSchema(Schema):
    id: str
    choice: str
    author: str = Field(description="`rule`, `grant`, `person` or `system`.")
    principal: str
    reason: str
    error: str | None = Field(description="Why the permission was not given, as the model sees it.")
    decided: Instant
    expires: Instant


class ApprovalSchema(Schema):
    """A permission question. An answer names `input_digest`, so that what was shown is what is answered."""

    id: str
    state: str = Field(description="`pending`, `decided`, `withdrawn` or `expired`.")
    ending: str = Field(description="Its state, in a word: `waits`, `answered`, `denied`, `timed out` …")
    sentence: str = Field(description="The same as a sentence.")
    asked: Instant
    identity: IdentitySchema
    tool_call_id: str
    tool: str
    permission: str
    tags: list[str]
    arguments: AnyObject = Field(description="The input, redacted; long texts are cut, with a mark.")
    input_digest: str = Field(description="SHA-256 of the real input's canonical form.")
    target: TargetSchema
    session_grant: str = Field(description="What `allow_for_session` would cover; empty: it is not offered.")
    precondition: str = Field(description="The target as it was when it was asked about; if it changed, nothing runs.")
    cwd: str
    env: list[str] = Field(description="Names of the variables that a command gets.")
    is_dangerous: bool
    is_outward: bool
    risk: str
    risk_summary: str
    preview: str
    hook_result: str
    suggested: str
    unknown_effects: list[AnyObject] = Field(
        default_factory=list, description="Earlier calls of the run that may or may not have happened."
    )
    answer: AnswerSchema | None
    decision: DecisionSchema | None
    choices: list[str] = Field(description="The answers that are offered; none once it is answered.")
    may_answer: bool
    may_not_because: str = Field(description="Why the caller may not answer it; empty when it may.")


class SessionFacts(Schema):
    id: str
    principal: str
    approval_mode: str
    project: str


class FullInputSchema(Schema):
    """The input as far as it is kept: every byte of it exactly when `is_exact`."""

    input: AnyObject
    is_exact: bool
    is_whole: bool
    note: str


class ApprovalDetail(ApprovalSchema):
    withdrawn: str = Field(description="Why it was withdrawn, if it was.")
    session: SessionFacts
    task_title: str
    parents: list[IdentitySchema] = Field(description="From the asking run's parent up to the session's first run.")
    whole: FullInputSchema
    is_tainted: bool = Field(description="The run has read, or inherited, untrusted content.")


@dataclass(frozen=True, slots=True)
class ApprovalView:
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
        return (Choice.ALLOW_ONCE, *((Choice.ALLOW_FOR_SESSION,) if is_granted else ()), Choice.DENY)

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

    def shape(self) -> ApprovalSchema:
        return ApprovalSchema.model_validate(_known(ApprovalSchema, question_json(self.question), self._answering()))

    def detail(self, approval: Approval) -> ApprovalDetail:
        # Not among it: how the target is now. That is told from where the person is, which this server need not be.
        return ApprovalDetail.model_validate(_known(ApprovalDetail, approval.as_json(), self._answering()))

    def _answering(self) -> dict[str, Json]:
        refusal = self.refusal or ("" if self.is_open else f"it is {status_of_question(self.question).word}")
        return {
            "choices": [str(choice) for choice in self.choices] if self.is_open else [],
            "may_answer": not refusal,
            "may_not_because": refusal,
        }


def _known(shape: type[Schema], *told: JsonObject) -> JsonObject:
    """Return the facts for which the schema has a field."""
    return {name: value for one in told for name, value in one.items() if name in shape.model_fields}


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
