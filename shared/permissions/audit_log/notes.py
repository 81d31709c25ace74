"""The audit note of each act, made of the act's own values. Pure; secrets are removed here.

The texts of people and of tools may hold secrets; a chain is over what is stored, so they go before it is linked
(EVT-05).
"""

from collections.abc import Mapping, Sequence
from typing import Final

from soong.shared.core.errors import ANSWERED
from soong.shared.core.identity import RunIdentity
from soong.shared.core.jsontext import Json
from soong.shared.engine.runs.events import EventType, NewEvent
from soong.shared.engine.sessions.session import Session
from soong.shared.engine.tasks.step import MALFORMED
from soong.shared.permissions.access.token import ApiToken
from soong.shared.permissions.audit_log.entry import AuditKind, AuditNote
from soong.shared.permissions.request import Answer, Decision
from soong.shared.permissions.signing import ExpiredDecision
from soong.shared.sandbox.redact import Redactor

_OF_LOG: Final = {"request_id": "request", "decision_id": "decision", "tool_call_id": "tool_call"}
"""Names in the log of a run, and their names in the audit log."""

MAX_SHOWN_CHARS: Final = 200

REPORTED: Final = frozenset({EventType.SECURITY, EventType.PERMISSION_WITHDRAWN})
"""Events in a run's log that belong into the audit log, where a worker may not write."""


def of_session(session: Session) -> AuditNote:
    """Tell that a session was opened, and what its policy allows without a question."""
    data: dict[str, Json] = {
        "principal": session.principal,
        "project": session.project,
        "approval_mode": str(session.approval_mode),
        "policy": dict(session.policy),
    }
    return AuditNote(AuditKind.SESSION_OPENED, data, session.id)


def of_answer(answer: Answer, session_id: str, run_id: str) -> AuditNote:
    """Tell who answered what, how, and to which input."""
    return AuditNote(AuditKind.ANSWER, {"run": run_id, **_said(answer)}, session_id)


def of_late_answer(answer: Answer, session_id: str, run_id: str, state: str) -> AuditNote:
    """Tell of an answer to a question that was closed, or answered, before."""
    what = "second_answer" if state == ANSWERED else "late_answer"
    return _security(what, session_id, state=state, run=run_id, **_said(answer))


def of_decision(decision: Decision, events: Sequence[NewEvent]) -> list[AuditNote]:
    """Tell of a decision and of the grant that it gives or uses; and of what was wrong with the question or answer."""
    facts = next((event.data for event in events if event.type == EventType.PERMISSION_DECIDED), {})
    security = [
        AuditNote(AuditKind.SECURITY, {"run": decision.run_id, **_as_audited(event.data)}, decision.session_id)
        for event in events
        if event.type == EventType.SECURITY
    ]
    data: dict[str, Json] = {
        **{name: facts[name] for name in ("channel", "rule", "grant", "metadata") if name in facts},
        "request": decision.request_id,
        "decision": decision.id,
        "run": decision.run_id,
        "tool_call": decision.tool_call_id,
        "tool": decision.tool,
        "scope": decision.scope,
        "input_digest": decision.input_digest,
        "choice": str(decision.choice),
        "author": decision.author,
        "principal": decision.principal,
        "reason": decision.reason,
        "error": None if decision.error is None else str(decision.error),
        "expires_us": decision.expires_us,
        "key": decision.key_id,
        "signature": decision.signature,
    }
    told = [*security, AuditNote(AuditKind.DECISION, data, decision.session_id)]
    grant: dict[str, Json] = {"decision": decision.id, "tool": decision.tool, "scope": decision.scope}
    if decision.choice.is_grant:
        given = {**grant, "principal": decision.principal}
        told.append(AuditNote(AuditKind.GRANT_GIVEN, given, decision.session_id))
    elif decision.author == "grant":
        used = {**grant, "grant": facts.get("grant"), "run": decision.run_id}
        told.append(AuditNote(AuditKind.GRANT_USED, used, decision.session_id))
    return told


def of_stale_owner(decision: Decision, owner_id: str, epoch: int) -> AuditNote:
    """Tell of a decision by one who does not own the session (any more)."""
    facts: dict[str, Json] = {"request": decision.request_id, "choice": str(decision.choice)}
    return _security("stale_owner", decision.session_id, owner=owner_id, epoch=epoch, **facts)


def of_withdrawn(session_id: str, run_id: str, request_id: str, tool_call_id: str, reason: str) -> AuditNote:
    """Tell that a question was closed without a decision, and why."""
    data: dict[str, Json] = {"request": request_id, "run": run_id, "tool_call": tool_call_id, "reason": reason}
    return AuditNote(AuditKind.WITHDRAWN, data, session_id)


def of_dropped_questions(session_id: str, run_id: str, closed: int) -> AuditNote:
    """Tell that a run asked too much at once, or that others did in its name; nobody was shown what was closed."""
    return _security("questions_dropped", session_id, run=run_id, closed=closed)


def of_tampering(identity: RunIdentity, what: str, problem: str) -> AuditNote:
    """Tell what was found among a run's files that no part of ours puts there."""
    return _security(what, identity.session_id, run=identity.run_id, problem=problem)


def of_malformed_report(identity: RunIdentity, problem: str) -> AuditNote:
    """Tell of a report that cannot be read; some worker that held the run left it."""
    return _security(MALFORMED, identity.session_id, row="report", run=identity.run_id, reason=problem)


def of_malformed_worker(worker_id: str, problem: str, freed: int) -> AuditNote:
    """Tell of a worker whose row no process of ours leaves behind, and how many leases that freed."""
    return _security(MALFORMED, row="worker", worker=worker_id[:MAX_SHOWN_CHARS], reason=problem, freed=freed)


def of_report(identity: RunIdentity, type_: str, data: Mapping[str, Json]) -> AuditNote:
    """Note a worker's report on a run: a refused decision, or a question that it took back."""
    kind = AuditKind.WITHDRAWN if type_ == EventType.PERMISSION_WITHDRAWN else AuditKind.SECURITY
    return AuditNote(kind, {**_as_audited(data), "run": identity.run_id, "reported_by": "worker"}, identity.session_id)


def of_token_made(token: ApiToken) -> AuditNote:
    """Tell who may speak for whom from now on. Neither the secret nor its digest."""
    rights: list[Json] = [str(right) for right in sorted(token.rights)]
    data: dict[str, Json] = {"token": token.id, "principal": token.principal, "rights": rights}
    return AuditNote(AuditKind.TOKEN_MADE, {**data, "expires_us": token.expires_us})


def of_sign_in(token: ApiToken) -> AuditNote:
    return AuditNote(AuditKind.SIGNED_IN, {"token": token.id, "principal": token.principal})


def of_token_revoked(token: ApiToken) -> AuditNote:
    return AuditNote(AuditKind.TOKEN_REVOKED, {"token": token.id, "principal": token.principal})


def of_key_published(key_id: str, public_key: bytes, principal: str, reason: str) -> AuditNote:
    """Tell by whom a key was published; nobody is named for the first key of a deployment."""
    data: dict[str, Json] = {"key": key_id, "public_key": public_key.hex(), "principal": principal, "reason": reason}
    return AuditNote(AuditKind.KEY_PUBLISHED, data)


def of_refused_key(key_id: str, problem: str) -> AuditNote:
    """Tell that an owner found a key that it does not sign with."""
    return _security("unpublished_key", key=key_id, problem=problem)


def of_key_retired(
    key_id: str, is_revoked: bool, at_us: int, principal: str, reason: str, expired: Sequence[ExpiredDecision]
) -> list[AuditNote]:
    """Tell that a key has ended, and of every decision that was taken away with it."""
    data: dict[str, Json] = {"key": key_id, "is_revoked": is_revoked, "at_us": at_us}
    told = [
        AuditNote(AuditKind.KEY_RETIRED, {**data, "principal": principal, "reason": reason, "expired": len(expired)})
    ]
    for one in expired:
        closed: dict[str, Json] = {"request": one.request_id, "run": one.run_id, "key": key_id}
        told.append(AuditNote(AuditKind.EXPIRED, {**closed, "reason": "its key was revoked"}, one.session_id))
    return told


def redacted(note: AuditNote, redactor: Redactor) -> AuditNote:
    return AuditNote(note.kind, redactor.mapping(note.data), note.session_id)


def _security(what: str, session_id: str = "", **data: Json) -> AuditNote:
    return AuditNote(AuditKind.SECURITY, {"what": what, **data}, session_id)


def _as_audited(data: Mapping[str, Json]) -> dict[str, Json]:
    return {_OF_LOG.get(name, name): value for name, value in data.items()}


def _said(answer: Answer) -> dict[str, Json]:
    return {
        "request": answer.request_id,
        "choice": None if answer.choice is None else str(answer.choice),
        "principal": answer.principal,
        "channel": answer.channel,
        "input_digest": answer.input_digest,
        "answered_us": answer.answered_us,
        "reason": answer.reason,
        "metadata": dict(answer.metadata),
        "provenance": answer.provenance.as_json(),
    }
