"""All that a person may want to know of one question, read from rows: who asks, for what, in which state (PER-06).

A value with a JSON form; its caller draws it. Nothing in it has been made inert.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from soong.orchestrator.approvals.full_input import FullInput, read_full_input
from soong.orchestrator.approvals.question_status import QuestionStatus, status_of_question
from soong.orchestrator.approvals.target_check import TargetChecker, TargetStatus
from soong.shared.core.clock import rfc3339
from soong.shared.core.errors import NotFoundError
from soong.shared.core.identity import RunIdentity
from soong.shared.core.jsontext import Json
from soong.shared.engine.runs.events import EventType
from soong.shared.engine.sessions.session import Session
from soong.shared.permissions.request import Answer, Decision, PermissionRequest, Question
from soong.shared.storage.store import Store

MAX_PARENTS: Final = 32
PAGE: Final = 1000


@dataclass(frozen=True, slots=True)
class Approval:
    """``parents`` lead from the asking run's parent up to the session's first run; ``withdrawn`` is why, if it was."""

    question: Question
    session: Session
    task_title: str
    parents: tuple[RunIdentity, ...]
    whole: FullInput
    now: TargetStatus
    is_tainted: bool
    withdrawn: str = ""

    @property
    def request(self) -> PermissionRequest:
        return self.question.request

    @property
    def ending(self) -> QuestionStatus:
        return status_of_question(self.question)

    def as_json(self) -> dict[str, Json]:
        """Return everything; stable, documented in docs/approvals.md."""
        return {
            **question_json(self.question),
            "withdrawn": self.withdrawn,
            "session": {
                "id": self.session.id,
                "principal": self.session.principal,
                "approval_mode": str(self.session.approval_mode),
                "project": self.session.project,
            },
            "task_title": self.task_title,
            "parents": [parent.as_json() for parent in self.parents],
            "whole": self.whole.as_json(),
            "now": self.now.as_json(),
            "is_tainted": self.is_tainted,
        }


def question_json(question: Question) -> dict[str, Json]:
    """Return a question for programs: the request as PER-06 lists it, its answer and its decision."""
    request, ending = question.request, status_of_question(question)
    return {
        "id": request.id,
        "state": str(question.state),
        "ending": ending.word,
        "sentence": ending.sentence,
        "asked": rfc3339(request.created_us),
        "identity": request.identity.as_json(),
        "tool_call_id": request.tool_call_id,
        "tool": request.tool,
        "permission": request.permission,
        "tags": list(request.tags),
        "arguments": request.arguments,
        "input_digest": request.input_digest,
        "target": {"kind": request.target_kind, "shown": request.shown, "host": request.host},
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
        "suggested": str(request.suggested),
        "answer": None if question.answer is None else _answer_json(question.answer),
        "decision": None if question.decision is None else _decision_json(question.decision),
    }


async def approval_of(store: Store, question: Question, target_checker: TargetChecker) -> Approval:
    """Read everything about a question. Raises: UnavailableError."""
    request = question.request
    identity = request.identity
    session = await store.sessions.session(identity.session_id)
    run = await store.runs.run(identity.run_id)
    whole = await read_full_input(store.runs, request)
    hosts = {worker.id: worker.host for worker in await store.sessions.workers(include_gone=True)}
    return Approval(
        question,
        session,
        (await store.tasks.task(identity.task_id)).title if identity.task_id else "",
        tuple(await _parents(store, identity)),
        whole,
        await target_checker.check(request, session, whole, hosts.get(run.worker_id, "")),
        await store.runs.is_tainted(identity.run_id),
        await _why_withdrawn(store, question),
    )


async def _parents(store: Store, identity: RunIdentity) -> Sequence[RunIdentity]:
    found: list[RunIdentity] = []
    while identity.parent_run_id and len(found) < MAX_PARENTS:
        try:
            identity = (await store.runs.run(identity.parent_run_id)).identity
        except NotFoundError:
            break
        found.append(identity)
    return found


async def _why_withdrawn(store: Store, question: Question) -> str:
    """Return why a question was closed without a decision; its run's log says it."""
    if question.is_pending or question.decision is not None:
        return ""
    run_id, seen = question.request.identity.run_id, 0
    while page := await store.runs.events(run_id, after_seq=seen, limit=PAGE):
        for event in page:
            if event.type == EventType.PERMISSION_WITHDRAWN and event.data.get("request_id") == question.request.id:
                return str(event.data.get("reason", ""))
        seen = page[-1].seq
    return ""


def _answer_json(answer: Answer) -> dict[str, Json]:
    return {
        "choice": None if answer.choice is None else str(answer.choice),
        "principal": answer.principal,
        "channel": answer.channel,
        "answered": rfc3339(answer.answered_us),
        "reason": answer.reason,
        "input_digest": answer.input_digest,
        "metadata": dict(answer.metadata),
    }


def _decision_json(decision: Decision) -> dict[str, Json]:
    return {
        "id": decision.id,
        "choice": str(decision.choice),
        "author": decision.author,
        "principal": decision.principal,
        "reason": decision.reason,
        "error": None if decision.error is None else str(decision.error),
        "decided": rfc3339(decision.decided_us),
        "expires": rfc3339(decision.expires_us),
    }
