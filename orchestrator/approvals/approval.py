"""All that a person may want to know of one question, read from rows: who asks, for what, in which state (PER-06).

A value; its caller shows it. Nothing in it has been made inert.
"""

from collections.abc import Sequence
from typing import Final

from soong.orchestrator.approvals.full_input import FullInput, read_full_input
from soong.orchestrator.approvals.question_status import QuestionStatus, status_of_question
from soong.orchestrator.approvals.target_check import TargetChecker, TargetStatus
from soong.shared.core.errors import NotFoundError
from soong.shared.core.identity import RunIdentity
from soong.shared.core.value import Value
from soong.shared.engine.runs.events import EventType
from soong.shared.engine.sessions.session import Session
from soong.shared.permissions.request import PermissionRequest, Question
from soong.shared.storage.store import Store

MAX_PARENTS: Final = 32
PAGE: Final = 1000


class Approval(Value):
    """``parents`` lead from the asking run's parent up to the session's first run; ``withdrawn`` is why, if it was."""

    question: Question
    session: Session
    task_title: str
    parents: tuple[RunIdentity, ...]
    full_input: FullInput
    now: TargetStatus
    is_tainted: bool
    withdrawn: str = ""

    @property
    def request(self) -> PermissionRequest:
        return self.question.request

    @property
    def ending(self) -> QuestionStatus:
        return status_of_question(self.question)


async def approval_of(store: Store, question: Question, target_checker: TargetChecker) -> Approval:
    """Read everything about a question. Raises: UnavailableError."""
    request = question.request
    identity = request.identity
    session = await store.sessions.session(identity.session_id)
    run = await store.runs.run(identity.run_id)
    full = await read_full_input(store.runs, request)
    hosts = {worker.id: worker.host for worker in await store.sessions.workers(include_gone=True)}
    return Approval(
        question,
        session,
        (await store.tasks.task(identity.task_id)).title if identity.task_id else "",
        tuple(await _parents(store, identity)),
        full,
        await target_checker.check(request, session, full, hosts.get(run.worker_id, "")),
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
