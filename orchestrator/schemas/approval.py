"""A permission question with its answer and decision, as programs see them (PER-06, PER-14)."""

from typing import Annotated, Any, Self

from pydantic import Field

from soong.orchestrator.approvals.approval import status_of_question
from soong.orchestrator.schemas.base import AnyObject, From, Instant, Schema
from soong.shared.engine.sessions.session import ApprovalMode
from soong.shared.permissions.request import Choice, Question, RequestState
from soong.shared.tools.result import ErrorType


class IdentitySchema(Schema):
    """The run that asks, read from its row and never from a message of the worker."""

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
    model: Annotated[str, From("chosen_model")]
    dispatched_by: Annotated[str, From("origin.principal")] = Field(
        description="Whose submission, retry or dispatch its run comes from."
    )
    is_foreign: Annotated[bool, From("origin.is_foreign")] = Field(
        description="That was another side than the session's: no grant or rule answers for it."
    )


class TargetSchema(Schema):
    kind: Annotated[str, From("target_kind")]
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


class DecisionSchema(Schema):
    id: str
    choice: Choice
    author: str = Field(description="`rule`, `grant`, `person` or `system`.")
    principal: str
    reason: str
    error: ErrorType | None = Field(description="Why the permission was not given, as the model sees it.")
    decided: Instant
    expires: Instant


class ApprovalSchema(Schema):
    """A permission question. An answer names `input_digest`, so that what was shown is what is answered."""

    id: str
    state: RequestState
    ending: str = Field(description="Its state, in a word: `waits`, `answered`, `denied`, `timed out` …")
    sentence: str = Field(description="The same as a sentence.")
    asked: Annotated[Instant, From("created_us")]
    identity: IdentitySchema
    tool_call_id: str
    tool: str
    permission: str
    tags: list[str]
    arguments: AnyObject = Field(description="The input, redacted; long texts are cut, with a mark.")
    input_digest: str = Field(description="SHA-256 of the real input's canonical form.")
    target: TargetSchema
    session_grant: Annotated[str, From("scope")] = Field(
        description="What `allow_for_session` would cover; empty: it is not offered."
    )
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
    def of_question(cls, question: Question, *values: object, **given: Any) -> Self:
        """Build it from a question: the request as PER-06 lists it, its answer and its decision; see :meth:`of`."""
        ending, target = status_of_question(question), TargetSchema.of(question.request)
        given |= {"ending": ending.word, "sentence": ending.sentence, "target": target}
        return cls.of(question.request, question, *values, **given)


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
