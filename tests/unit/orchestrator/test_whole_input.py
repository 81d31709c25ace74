"""The whole input of a call that is asked for, found in its run's nodes and held to the digest of the question."""

from collections.abc import Mapping

import pytest

from soong.orchestrator.approvals.full_input import EXACT, REDACTED, SUMMARY, full_input
from soong.shared.core.jsontext import Json, JsonObject, digest, dump
from soong.shared.engine.runs.events import Node, NodeKind
from soong.shared.permissions.gate import MAX_SHOWN_CHARS
from soong.shared.permissions.request import PermissionRequest
from soong.shared.sandbox.redact import MARK
from tests.unit.cli.test_prompt import make_request

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


def test_a_short_input_is_complete_in_the_question_itself() -> None:
    request = asked({"path": "a"}, {"path": "a"})

    assert full_input(request, []).input == {"path": "a"}
    assert full_input(request, []).is_exact


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
