"""The state or end of a question, in words: each way to deny has its own (PER-14).

Pure. Texts of others (reasons, principals) are returned as they are; their callers make them inert.
"""

from typing import Final

from soong.orchestrator.approvals.decide import FAULTS
from soong.shared.core.value import Value
from soong.shared.permissions.request import Answer, Decision, Question, RequestState
from soong.shared.permissions.store import ConsentStore
from soong.shared.tools.result import ErrorType

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


def status_of_question(question: Question) -> QuestionStatus:
    """Return the current state of a question."""
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
    """Return why a call was not allowed, from what its run's log says: the error, the reason, and who decided."""
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
            return QuestionStatus(
                "by grant", f"allowed by a grant that {principal} gave for the session", is_allowed=True
            )
        said = decision.choice.traits.past
        return QuestionStatus(
            said, _with_reason(f"{said} by {_who(principal, channel)}", decision.reason), is_allowed=True
        )
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
