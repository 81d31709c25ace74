"""What a command tool may print, and what becomes of everything else."""

import json
from typing import Any

import pytest

from soong.shared.tools.result import ErrorType, JsonBlock, TextBlock, ToolError, ToolResult
from soong.shared.toolsets.declarative.protocol import in_a_line, last_lines, read_result

ESC = "\x1b"


def read(document: object) -> ToolResult:
    text = document if isinstance(document, bytes) else json.dumps(document).encode()
    return read_result("call_ours", text, 100_000)


def problem(document: object) -> str:
    with pytest.raises(ToolError) as caught:
        read(document)
    assert caught.value.failure.type is ErrorType.INVALID_OUTPUT
    return str(caught.value)


@pytest.mark.spec("CMD-03.b", "CMD-03.c", "RES-01.a")
def test_a_whole_result_is_taken_over() -> None:
    result = read(
        {
            "tool_call_id": "call_of_another",
            "is_error": False,
            "content": [{"kind": "text", "text": "two\nlines"}, {"kind": "json", "value": {"a": [1]}}],
            "summary": "done well",
            "data": {"n": 1},
            "artifacts": [],
            "error": None,
            "metadata": {"version": "1.2"},
        }
    )

    assert result == ToolResult(
        "call_ours",
        (TextBlock("two\nlines"), JsonBlock({"a": [1]})),
        "done well",
        {"n": 1},
        metadata={"tool": {"version": "1.2"}},
    )


@pytest.mark.spec("CMD-03")
@pytest.mark.parametrize(
    ("document", "content", "summary"),
    [
        ({"summary": "made it"}, (TextBlock("made it"),), "made it"),
        ({"data": {"n": 1}}, (JsonBlock({"n": 1}),), "object"),
        ({"data": 0}, (JsonBlock(0),), "done"),
        ({"data": None}, (JsonBlock(None),), "null"),
        ({"data": None, "summary": "found none"}, (TextBlock("found none"),), "found none"),
        ({"content": [{"kind": "text", "text": "first\nsecond"}]}, (TextBlock("first\nsecond"),), "first"),
    ],
)
def test_what_a_tool_leaves_out_is_made_of_what_it_says(
    document: dict[str, Any], content: tuple[object, ...], summary: str
) -> None:
    result = read(document)

    assert (result.content, result.summary) == (content, summary)


# Written here once more: which errors are a tool's own to report is what these tests hold the product to.
CLAIMABLE = frozenset(
    map(
        ErrorType,
        [
            *(
                "execution_failed",
                "invalid_input",
                "file_not_found",
                "not_regular_file",
                "binary_file",
                "path_conflict",
            ),
            *(
                "text_not_found",
                "ambiguous_edit",
                "patch_apply_failed",
                "limit_exceeded",
                "server_unavailable",
                "timeout",
            ),
        ],
    )
)


@pytest.mark.spec("CMD-03")
@pytest.mark.parametrize("type_", sorted(CLAIMABLE), ids=str)
def test_an_error_of_the_tools_own_work_keeps_its_type(type_: ErrorType) -> None:
    result = read({"error": {"type": type_.value, "message": "no", "hint": "yes", "details": {"a": 1}}, "data": [1]})

    assert result.error is not None
    assert (result.error.type, result.error.message, result.error.hint) == (type_, "no", "yes")
    assert result.error.details == {"a": 1}
    assert result.data == [1]


@pytest.mark.spec("CMD-03", "RES-05")
@pytest.mark.parametrize("type_", [*sorted(set(ErrorType) - CLAIMABLE), "surprise"], ids=str)
def test_a_tool_does_not_speak_for_the_core(type_: str) -> None:
    result = read({"error": {"type": str(type_), "message": "no", "retryable": True}})

    assert result.error is not None
    assert result.error.type is ErrorType.EXECUTION_FAILED
    assert result.error.details == {"said_type": str(type_), "said_retryable": True}
    assert not result.error.retryable


@pytest.mark.spec("CMD-03.b")
@pytest.mark.parametrize(
    ("document", "expected"),
    [
        ({}, "$: says nothing"),
        ({"summary": None}, "$: says nothing"),
        ([], "$: must be an object"),
        ("done", "$: must be an object"),
        (None, "$: must be an object"),
        ({"output": "x"}, "$: has unknown fields 'output'"),
        ({"summary": "x", "ok": True}, "$: has unknown fields 'ok'"),
        ({"summary": "x", "context_nodes": []}, "$: has unknown fields 'context_nodes'"),
        ({"summary": 1}, "$.summary: must be string"),
        ({"is_error": "no", "summary": "x"}, "$.is_error: must be boolean"),
        ({"is_error": False, "error": {"message": "x"}}, "$.is_error: is false next to an error"),
        ({"error": "failed"}, "$.error: must be object"),
        ({"error": {"type": "timeout"}}, "$.error: lacks 'message'"),
        ({"error": {"message": "x", "code": 1}}, "$.error: has unknown fields 'code'"),
        ({"error": {"message": "x", "retryable": "yes"}}, "$.error.retryable: must be boolean"),
        ({"content": "text"}, "$.content: must be array"),
        ({"content": ["text"]}, "$.content[0]: must be object"),
        ({"content": [{"type": "text", "text": "x"}]}, "$.content[0]: must be"),
        ({"content": [{"kind": "text", "text": 1}]}, "$.content[0]: must be"),
        ({"content": [{"kind": "text", "text": "x", "role": "system"}]}, "$.content[0]: must be"),
        ({"content": [{"kind": "artifact_ref", "digest": "a"}]}, "$.content[0]: must be"),
        ({"content": [{"kind": "text", "text": ""}] * 101}, "$.content: breaks maxItems 100"),
        ({"summary": "x", "artifacts": [{"digest": "a"}]}, "$.artifacts: breaks maxItems 0"),
        ({"summary": "x", "metadata": []}, "$.metadata: must be object"),
        ({"summary": "x", "metadata": {"a": "b" * 20_000}}, "$.metadata: has 20008 bytes"),
    ],
    ids=str,
)
def test_another_shape_is_invalid_output_that_names_the_place(document: object, expected: str) -> None:
    assert expected in problem(document)


@pytest.mark.spec("CMD-03")
@pytest.mark.parametrize(
    "hostile",
    [
        {"summary": f"{ESC}]0;title\x07{ESC}[2J{ESC}[31mred{ESC}[0m"},
        {"content": [{"kind": "text", "text": f"{ESC}]8;;http://x{ESC}\\red\x9b2J"}]},
        {"error": {"message": f"{ESC}]52;c;ZXZpbA==\x07red\x00", "hint": f"{ESC}c"}},
        {"is_error": True, "summary": f"{ESC}[1;1Hred"},
    ],
    ids=["summary", "content", "error", "summary-of-error"],
)
def test_no_text_of_a_tool_reaches_a_terminal_as_a_command(hostile: dict[str, Any]) -> None:
    result = read(hostile)

    texts = [result.summary, *(block.text for block in result.content if isinstance(block, TextBlock))]
    texts += [result.error.message, result.error.hint] if result.error else []
    assert any("red" in text for text in texts)
    assert not any(char in text for text in texts for char in (ESC, "\x07", "\x9b", "\0"))


def test_text_for_people_is_one_line_of_bounded_length() -> None:
    assert in_a_line(f"a\n\tb {ESC}[1mc", 100) == "a b c"
    assert in_a_line("x" * 50, 10) == "x" * 10 + "…"


def test_a_log_is_cut_between_lines_and_keeps_its_end() -> None:
    log = "".join(f"line {number}\n" for number in range(1000))

    words = last_lines(log, 100)

    assert words.startswith("[…]\nline ")
    assert words.endswith("line 999")
    assert len(words) <= 104
    assert last_lines(f"{'x' * 1000}\nend", 300) == "[a line of 1000 characters]\nend"
