"""The owner's decision on a question, before it is signed: pure, with a distinct outcome per denial (PER-14)."""

import asyncio
import shlex
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import msgspec
from msgspec.structs import replace

from soong.orchestrator.approvals.full_input import FullInput
from soong.shared.core.errors import InvalidConfigError
from soong.shared.core.foreign import call_foreign
from soong.shared.core.identity import new_id
from soong.shared.core.jsontext import Json, JsonObject
from soong.shared.core.value import Value
from soong.shared.engine.runs.events import EventType, NewEvent
from soong.shared.engine.sessions.session import ApprovalMode, Session
from soong.shared.permissions.configured import run_dirs_of
from soong.shared.permissions.gate import facts_of
from soong.shared.permissions.policy import Policy, judge
from soong.shared.permissions.request import (
    NO_CALLBACK,
    Answer,
    Choice,
    Decision,
    PermissionRequest,
    RequestState,
    offered_choices,
)
from soong.shared.permissions.rules import Effect, Grant, offered_scope
from soong.shared.sandbox.redact import Redactor
from soong.shared.tools.definition import NO_PROGRESS, ToolContext, ToolDefinition
from soong.shared.tools.result import ErrorType
from soong.shared.tools.results.normalize import failure_of

UNTOLD = ("state", "security", "if_unanswered")
FAULTS = frozenset({ErrorType.PERMISSION_TIMEOUT, ErrorType.PERMISSION_NO_CALLBACK, ErrorType.PERMISSION_FAILED})
"""Not getting a yes because asking failed: each is a permission_failed event of its own (PER-05)."""


class UnsignedDecision(Value):
    """An outcome and its author. ``error`` is set exactly when the choice is deny.

    ``rule`` names the rule and its source, ``grant`` the decision that a session grant came from, ``metadata`` is that
    of the callback's answer (PER-03, PER-19). ``security`` names the failed check of the question or the answer; it is
    an event of its own. ``if_unanswered``: an answer that has come since goes before it.
    """

    choice: Choice
    author: Literal["rule", "grant", "person", "system"]
    principal: str = ""
    channel: str = ""
    reason: str = ""
    error: ErrorType | None = None
    rule: str = ""
    grant: str = ""
    metadata: JsonObject = msgspec.field(default_factory=dict)
    state: RequestState = RequestState.DECIDED
    security: str = ""
    if_unanswered: bool = False

    def decision(self, request: PermissionRequest, *, now_us: int, ttl_us: int) -> Decision:
        return Decision(
            id=new_id("dec"),
            request_id=request.id,
            session_id=request.identity.session_id,
            run_id=request.identity.run_id,
            tool_call_id=request.tool_call_id,
            tool=request.tool,
            input_digest=request.input_digest,
            scope=request.scope,
            precondition=request.precondition,
            choice=self.choice,
            author=self.author,
            principal=self.principal,
            reason=self.reason,
            error=self.error,
            decided_us=now_us,
            expires_us=now_us + ttl_us,
            key_id="",
        )

    def events(self, decision: Decision, redactor: Redactor) -> Sequence[NewEvent]:
        """Return its events in the run's log, without secrets; the pipeline adds tool_denied when the call ends."""
        told: dict[str, Json] = {
            "request_id": decision.request_id,
            "decision_id": decision.id,
            "tool_call_id": decision.tool_call_id,
            "tool": decision.tool,
            "scope": decision.scope,
            **{name: value for name, value in self.as_json().items() if name not in UNTOLD},
        }
        facts = redactor.mapping(told)  # a person's words may hold what was typed at the wrong place (EVT-05)
        events = [NewEvent(EventType.PERMISSION_DECIDED, facts, decision.decided_us)]
        if self.error in FAULTS:
            failed = {**facts, "reason": str(self.error), "message": facts["reason"]}
            events.insert(0, NewEvent(EventType.PERMISSION_FAILED, failed, decision.decided_us))
        if self.state is RequestState.WITHDRAWN:
            events = [NewEvent(EventType.PERMISSION_WITHDRAWN, facts, decision.decided_us)]
        if self.security:
            events.insert(0, NewEvent(EventType.SECURITY, {**facts, "what": self.security}, decision.decided_us))
        return tuple(events)


def forged() -> UnsignedDecision:
    """Refuse a request that its run did not prove; nobody is asked."""
    reason = "the request does not carry the proof of its run"
    refusal = _refusal(ErrorType.PERMISSION_WITHDRAWN, reason, state=RequestState.WITHDRAWN)
    return replace(refusal, security="forged_request")


def failed(reason: str) -> UnsignedDecision:
    """Refuse because asking went wrong."""
    return _refusal(ErrorType.PERMISSION_FAILED, reason)


def no_callback(waited_s: float) -> UnsignedDecision:
    reason = f"nobody who could answer was attached to the session for {waited_s:g} s"
    return replace(_refusal(ErrorType.PERMISSION_NO_CALLBACK, reason), if_unanswered=True)


def timed_out(waited_s: float) -> UnsignedDecision:
    reason = f"the question was shown for {waited_s:g} s and nobody answered"
    return replace(_refusal(ErrorType.PERMISSION_TIMEOUT, reason), if_unanswered=True)


def by_policy(session: Session, policy: Policy, request: PermissionRequest) -> UnsignedDecision | None:
    """Refuse what the session's policy denies by now, and whatever asks in a session that nobody answers for."""
    verdict = judge(policy, facts_of(request))
    if verdict.effect is Effect.DENY:
        principal = f"{verdict.rule} ({verdict.source})"
        error = verdict.error or ErrorType.PERMISSION_DENIED
        return UnsignedDecision(Choice.DENY, "rule", principal, reason=verdict.reason, error=error, rule=principal)
    if session.approval_mode is ApprovalMode.DENY:
        scope = request.scope if request.target_kind == "path" else f"exact:{request.scope}"
        rule = shlex.quote(f"{request.tool}:{scope}") if request.scope else "TOOL:SCOPE"
        reason = f"the session is answered by its policy alone, and no rule of it allows this; add one: --allow {rule}"
        if facts_of(request).is_outward:
            reason += "; a run that read or was given untrusted content needs a rule for the host, or a trusted server"
        return _refusal(ErrorType.PERMISSION_NO_CALLBACK, reason)
    return None


def by_grant(grant: Grant) -> UnsignedDecision:
    reason = f"allowed for the session by {grant.decision_id}"
    return UnsignedDecision(Choice.ALLOW_ONCE, "grant", grant.principal, reason=reason, grant=grant.decision_id)


def offers_session(policy: Policy, request: PermissionRequest, home: str) -> bool:
    """Say whether a session grant may be given or used: judged by the owner, whatever the asker wrote (PER-08)."""
    facts = facts_of(request)
    may_be_granted = request.offers_session and not policy.asks_each_time(facts)
    return may_be_granted and offered_scope(facts.target, home) == request.scope


def by_answer(session: Session, request: PermissionRequest, answer: Answer, *, may_grant: bool) -> UnsignedDecision:
    """Turn a responder's words into a decision; words that do not fit the question are a failure, not a person's no."""
    security, problem = _problem(session, request, answer, may_grant=may_grant)
    if problem or answer.choice is None:
        is_nobody = not security and answer.choice is None and answer.metadata.get(NO_CALLBACK) is True
        fault = ErrorType.PERMISSION_NO_CALLBACK if is_nobody else ErrorType.PERMISSION_FAILED
        return UnsignedDecision(
            Choice.DENY, "system", answer.principal, answer.channel, problem, fault, security=security
        )
    error = None if answer.choice.is_allowed else ErrorType.PERMISSION_DENIED
    return UnsignedDecision(
        answer.choice, "person", answer.principal, answer.channel, answer.reason, error, metadata=answer.metadata
    )


def _problem(session: Session, request: PermissionRequest, answer: Answer, *, may_grant: bool) -> tuple[str, str]:
    """Return what is wrong with an answer: the name of the security event, if it is one, and a sentence."""
    if answer.provenance.problem:
        return "not_a_person", answer.provenance.problem
    if session.approval_mode is ApprovalMode.PROMPT and answer.principal != session.principal:
        foreign = f"{answer.principal!r} answered, but the session is answered by {session.principal!r}"
        return "foreign_principal", foreign
    if answer.input_digest != request.input_digest:
        return "wrong_digest", "the answer was given to another input than the one that waits"
    if answer.choice is None:
        return "", answer.reason or "the responder failed without saying why"
    if answer.choice.is_grant and not may_grant:
        offered = " and ".join(offered_choices(may_grant=False))
        unoffered = f"{answer.choice} was answered to a question that offers only {offered}"
        return "unoffered_choice", unoffered
    return "", ""


def _refusal(error: ErrorType, reason: str, state: RequestState = RequestState.DECIDED) -> UnsignedDecision:
    return UnsignedDecision(Choice.DENY, "system", reason=reason, error=error, state=state)


class TargetStatus(Value):
    """``is_changed`` is None where it cannot be determined here; ``note`` is the reason, or the change.

    ``preview`` is what the person would be shown now: a diff against the file as it is.
    """

    is_changed: bool | None
    note: str
    preview: str = ""


class TargetChecker(Value):
    """Checks targets: by the tools that are known here, and the folders where runs of this home work and may write."""

    tools: Sequence[ToolDefinition]
    runs_folder: Path
    write_roots: tuple[Path, ...] = ()
    """Those of the configuration, in addition to a run's own."""

    async def check(self, request: PermissionRequest, session: Session, whole: FullInput, host: str) -> TargetStatus:
        """Check a question's target; ``host`` is that of its run ("" when no worker holds it)."""
        tool = next((tool for tool in self.tools if tool.name == request.tool), None)
        refusal = self._refusal(request, session, whole, host, tool)
        if refusal or tool is None or tool.target is None:
            return TargetStatus(None, refusal)
        context = self._context(request, session)
        try:
            target = await asyncio.to_thread(call_foreign, tool.target, context, whole.input)
        except Exception as error:  # noqa: BLE001  # whatever a target raises is how the call would end
            return TargetStatus(True, f"as things are now it would be refused: {failure_of(error).message}")
        if target.shown != request.shown:
            return TargetStatus(True, f"the target now leads to {target.shown}; a yes will not be used", target.preview)
        if target.precondition != request.precondition:
            note = "the target has changed since the question was asked; a yes ends as path_conflict, nothing is done"
            return TargetStatus(True, note, target.preview)
        return TargetStatus(False, "the target is as it was when the question was asked", target.preview)

    def _refusal(
        self, request: PermissionRequest, session: Session, whole: FullInput, host: str, tool: ToolDefinition | None
    ) -> str:
        """Say why it cannot be determined here; empty when it can."""
        if tool is None:
            return f"the tool {request.tool} is not known here, so its target is not looked at"
        if not request.precondition or tool.target is None:
            return "the call names nothing whose state could be compared"
        if host not in ("", socket.gethostname()) or not Path(session.project).is_dir():
            return f"the target is where the run works ({host or session.project}), not here"
        if not whole.is_complete:
            return "the input is not fully known, so its target is not looked at"
        return ""

    def _context(self, request: PermissionRequest, session: Session) -> ToolContext:
        try:
            policy = Policy.from_json(session.policy)
        except InvalidConfigError:  # the owner refuses whatever is asked under such a policy
            policy = Policy()
        run_dirs = run_dirs_of(
            Path(session.project),
            Path(request.cwd or session.cwd),
            self.runs_folder / request.identity.run_id,
            policy,
            self.tools,
            write_roots=self.write_roots,
            home=str(Path.home()),
            step=request.identity.step_key,
        )
        return ToolContext(request.identity, run_dirs, request.tool_call_id, "looked_at", 0, NO_PROGRESS)
