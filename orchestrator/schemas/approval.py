"""A permission question with its answer and decision, as programs see them (PER-06, PER-14)."""

from typing import Any

from pydantic import Field

from soong.orchestrator.approvals.approval import Approval, status_of_question
from soong.orchestrator.schemas.base import AnyObject, Instant, Schema
from soong.shared.core.clock import rfc3339
from soong.shared.core.identity import RunIdentity
from soong.shared.engine.sessions.session import ApprovalMode
from soong.shared.permissions.request import Answer, Choice, Decision, Question, RequestState
from soong.shared.tools.result import ErrorType


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

    @classmethod
    def of(cls, identity: RunIdentity) -> "IdentitySchema":
        return cls.model_validate(identity.as_json())


class TargetSchema(Schema):
    kind: str
    shown: str = Field(description="The resolved target: a path, a command, a host.")
    host: str


class AnswerSchema(Schema):
    choice: Choice | None = Field(description="Null when the responder failed instead of answering.")
    principal: str
    channel: str
    answered: Instant
    reason: str
    input_digest: str
    metadata: AnyObject

    @classmethod
    def of(cls, answer: Answer) -> "AnswerSchema":
        return cls(
            choice=answer.choice,
            principal=answer.principal,
            channel=answer.channel,
            answered=rfc3339(answer.answered_us),
            reason=answer.reason,
            input_digest=answer.input_digest,
            metadata=dict(answer.metadata),
        )


class DecisionSchema(Schema):
    id: str
    choice: Choice
    author: str = Field(description="`rule`, `grant`, `person` or `system`.")
    principal: str
    reason: str
    error: ErrorType | None = Field(description="Why the permission was not given, as the model sees it.")
    decided: Instant
    expires: Instant

    @classmethod
    def of(cls, decision: Decision) -> "DecisionSchema":
        return cls(
            id=decision.id,
            choice=decision.choice,
            author=decision.author,
            principal=decision.principal,
            reason=decision.reason,
            error=decision.error,
            decided=rfc3339(decision.decided_us),
            expires=rfc3339(decision.expires_us),
        )


class ApprovalSchema(Schema):
    """A permission question. An answer names `input_digest`, so that what was shown is what is answered."""

    id: str
    state: RequestState
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
    suggested: Choice
    unknown_effects: list[AnyObject] = Field(description="Earlier calls of the run that may or may not have happened.")
    answer: AnswerSchema | None
    decision: DecisionSchema | None

    @classmethod
    def fields_of(cls, question: Question) -> dict[str, Any]:
        """Return what every form of a question says: the request as PER-06 lists it, its answer and its decision."""
        request, ending = question.request, status_of_question(question)
        return {
            "id": request.id,
            "state": question.state,
            "ending": ending.word,
            "sentence": ending.sentence,
            "asked": rfc3339(request.created_us),
            "identity": IdentitySchema.of(request.identity),
            "tool_call_id": request.tool_call_id,
            "tool": request.tool,
            "permission": request.permission,
            "tags": list(request.tags),
            "arguments": request.arguments,
            "input_digest": request.input_digest,
            "target": TargetSchema(kind=request.target_kind, shown=request.shown, host=request.host),
            "session_grant": request.scope,
            "precondition": request.precondition,
            "cwd": request.cwd,
            "env": list(request.env),
            "is_dangerous": request.is_dangerous,
            "is_outward": request.is_outward,
            "risk": request.risk,
            "risk_summary": request.risk_summary,
            "preview": request.preview,
            "hook_result": request.hook_result,
            "unknown_effects": list(request.unknown_effects),
            "suggested": request.suggested,
            "answer": None if question.answer is None else AnswerSchema.of(question.answer),
            "decision": None if question.decision is None else DecisionSchema.of(question.decision),
        }

    @classmethod
    def of(cls, question: Question) -> "ApprovalSchema":
        return cls(**cls.fields_of(question))


class AskingSession(Schema):
    id: str
    principal: str
    approval_mode: ApprovalMode
    project: str


class FullInputSchema(Schema):
    """The input as far as it is kept: every byte of it exactly when `is_exact`."""

    input: AnyObject
    is_exact: bool
    is_complete: bool = Field(description="Nothing of it is cut.")
    note: str


class TargetStatusSchema(Schema):
    """The target as it is now."""

    is_changed: bool | None = Field(description="Null: it cannot be determined where the question is shown.")
    note: str = Field(description="Why it cannot be determined, or what has changed.")
    preview: str = Field(description="What a person would be shown now: a diff against the file as it is.")


class ApprovalDetail(ApprovalSchema):
    withdrawn: str = Field(description="Why it was withdrawn, if it was.")
    session: AskingSession
    task_title: str
    parents: list[IdentitySchema] = Field(description="From the asking run's parent up to the session's first run.")
    full_input: FullInputSchema
    now: TargetStatusSchema | None = Field(description="Null over HTTP: its server does not look at targets.")
    is_tainted: bool = Field(description="The run has read, or inherited, untrusted content.")

    @classmethod
    def fields_of_approval(cls, approval: Approval) -> dict[str, Any]:
        """Return what every form of an approval with its details says; ``now`` among them."""
        session, full, now = approval.session, approval.full_input, approval.now
        return {
            **cls.fields_of(approval.question),
            "withdrawn": approval.withdrawn,
            "session": AskingSession(
                id=session.id,
                principal=session.principal,
                approval_mode=session.approval_mode,
                project=session.project,
            ),
            "task_title": approval.task_title,
            "parents": [IdentitySchema.of(parent) for parent in approval.parents],
            "full_input": FullInputSchema(
                input=full.input, is_exact=full.is_exact, is_complete=full.is_complete, note=full.note
            ),
            "now": TargetStatusSchema(is_changed=now.is_changed, note=now.note, preview=now.preview),
            "is_tainted": approval.is_tainted,
        }

    @classmethod
    def of_approval(cls, approval: Approval) -> "ApprovalDetail":
        return cls(**cls.fields_of_approval(approval))
