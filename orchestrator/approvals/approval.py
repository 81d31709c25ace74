"""The facts of one question for a person, read from rows: who asks, for what, in which state (PER-06).

A value; its caller shows it. Nothing in it has been made inert.
"""

import asyncio
import socket
from collections.abc import Sequence
from typing import Final

from soong.orchestrator.approvals.decide import FAULTS, TargetChecker, TargetStatus
from soong.orchestrator.approvals.full_input import FullInput, event_of, read_full_input
from soong.shared.core.errors import StartedByRunError
from soong.shared.core.identity import RunIdentity
from soong.shared.core.value import Value
from soong.shared.engine.runs.events import EventType
from soong.shared.engine.runs.store import ancestors_of
from soong.shared.engine.sessions.session import Session, SessionStore
from soong.shared.permissions.request import Answer, Decision, PermissionRequest, Provenance, Question, RequestState
from soong.shared.permissions.store import ConsentStore
from soong.shared.sandbox.family import RegisteredWorker, chain_of, own_chain
from soong.shared.storage.store import Store
from soong.shared.tools.result import ErrorType

MAX_PARENTS: Final = 32

WAITS: Final = "waits"

CHANNELS: Final = {
    "terminal": "a terminal",
    "cli": "soong approvals",
    "http": "the HTTP API",
    "mcp": "an MCP client",
    "sdk": "a program",
}

_REFUSALS: Final = {
    ErrorType.PERMISSION_TIMEOUT: ("timed out", "nobody answered in time"),
    ErrorType.PERMISSION_NO_CALLBACK: ("nobody there", "nobody was there to be asked"),
    ErrorType.PERMISSION_FAILED: ("failed", "asking failed"),
    ErrorType.PERMISSION_WITHDRAWN: ("withdrawn", "the question was withdrawn"),
    ErrorType.PERMISSION_STALE: ("stale", "the answer no longer fits"),
    ErrorType.PATH_CONFLICT: ("changed", "the target is not what was shown"),
}


class QuestionStatus(Value):
    """``word`` for tables, ``sentence`` for people. A question that waits has one, too."""

    word: str
    sentence: str
    is_allowed: bool = False


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
    withdrawn = None
    if not question.is_pending and question.decision is None:
        withdrawn = await event_of(store.runs, request, EventType.PERMISSION_WITHDRAWN)
    return Approval(
        question,
        session,
        (await store.tasks.task(identity.task_id)).title if identity.task_id else "",
        tuple(await ancestors_of(store.runs, identity, MAX_PARENTS)),
        full,
        await target_checker.check(request, session, full, hosts.get(run.worker_id, "")),
        await store.runs.is_tainted(identity.run_id),
        "" if withdrawn is None else str(withdrawn.data.get("reason", "")),
    )


def status_of_question(question: Question) -> QuestionStatus:
    if question.decision is not None:
        decided = _decided(question.decision, question.answer)
        if question.state is RequestState.EXPIRED and decided.is_allowed:
            return QuestionStatus("unused", f"{decided.sentence}; not used in time, so its call asks again")
        return decided
    match question.state:
        case RequestState.PENDING if question.answer is not None:
            return QuestionStatus("answered", f"{_answered(question.answer)}; no orchestrator has acted on it yet")
        case RequestState.PENDING:
            return QuestionStatus(WAITS, "waits for an answer")
        case RequestState.EXPIRED:
            return QuestionStatus("expired", "expired without an answer")
        case _:
            return QuestionStatus("withdrawn", "withdrawn: its call does not wait for it any more")


async def question_of(store: ConsentStore, request_id: str) -> Question:
    """Return a question as the rows have it. Raises: NotFoundError."""
    request, state = await store.request(request_id)
    return Question(request, state, await store.answer_of(request_id), await store.decision_of(request_id))


def denial_sentence(error: str, reason: str, *, author: str = "", principal: str = "", channel: str = "") -> str:
    """Return why a call was not allowed, from its run's log: the error, the reason, and who decided."""
    if author == "person":
        return _with_reason(f"denied by {_who(principal, channel)}", reason)
    if author == "rule":
        return _with_reason("denied by a rule", reason)
    asking_failed = {str(name): _REFUSALS[name][1] for name in FAULTS}
    return _with_reason(asking_failed[error], reason) if error in asking_failed else reason


def _decided(decision: Decision, answer: Answer | None) -> QuestionStatus:
    principal, channel = decision.principal, answer.channel if answer is not None else ""
    if decision.error is None:
        if decision.author == "grant":
            sentence = f"allowed by a grant that {principal} gave for the session"
            return QuestionStatus("by grant", sentence, is_allowed=True)
        word = decision.choice.traits.past
        sentence = _with_reason(f"{word} by {_who(principal, channel)}", decision.reason)
        return QuestionStatus(word, sentence, is_allowed=True)
    word, sentence = _REFUSALS.get(decision.error, ("denied", "denied"))
    if decision.author == "rule":
        return QuestionStatus("by rule", _with_reason(f"denied by the rule {principal}", decision.reason))
    if decision.author == "person":
        sentence = f"denied by {_who(principal, channel)}"
    return QuestionStatus(word, _with_reason(sentence, decision.reason))


def _answered(answer: Answer) -> str:
    who = _who(answer.principal, answer.channel)
    if answer.choice is None:
        return _with_reason(f"{who} failed to answer", answer.reason)
    return _with_reason(f"{answer.choice.traits.past} by {who}", answer.reason)


def _who(principal: str, channel: str) -> str:
    return f"{principal} through {CHANNELS.get(channel, channel)}" if channel else principal or "a person"


def _with_reason(sentence: str, reason: str) -> str:
    return f"{sentence}: {reason}" if reason else sentence


async def provenance_here(store: SessionStore | None) -> Provenance:
    """Return where this process comes from. Without a store only the kernel is asked.
    Raises: UnavailableError, the rows do not answer.
    """
    return Provenance(socket.gethostname(), await asyncio.to_thread(own_chain, await workers_here(store)))


async def workers_here(store: SessionStore | None) -> tuple[RegisteredWorker, ...]:
    """Return the worker processes of this machine by their rows. Raises: UnavailableError."""
    host = socket.gethostname()
    rows = await store.workers() if store is not None else ()
    return tuple(RegisteredWorker(row.pid, row.started_us) for row in rows if row.host == host)


def provenance_of(pid: int, workers: Sequence[RegisteredWorker]) -> Provenance:
    """Return where another process of this machine comes from; without processes when it has ended."""
    return Provenance(socket.gethostname(), chain_of(pid, workers))


async def check_person(store: SessionStore | None, what: str) -> Provenance:
    """Return where this process comes from; ``what`` is what it is about to do in a person's name.
    Raises: StartedByRunError, a run started it; UnavailableError, the rows do not answer.
    """
    provenance = await provenance_here(store)
    _refuse_run(provenance, what)
    return provenance


def check_person_now(what: str) -> None:
    """Like :func:`check_person`, by the kernel's word alone. Raises: StartedByRunError."""
    _refuse_run(Provenance(processes=own_chain()), what)


def is_run_here() -> bool:
    """Say whether a run started this process, by the kernel's word alone."""
    return Provenance(processes=own_chain()).run_process is not None


def _refuse_run(provenance: Provenance, what: str) -> None:
    if provenance.run_process is not None:
        raise StartedByRunError(what, provenance.run_process.pid, provenance.run_process.program)
