"""Results of Soong's MCP tools: bounded documents, and lines that no text of others can imitate."""

import json
from typing import Any

import pytest
from mcp_types import TextContent

from soong.orchestrator.mcp.api import MAX_DOCUMENT_CHARS, MAX_ENTRIES, MAX_TEXT_CHARS, shown

pytestmark = pytest.mark.spec("MCP-02.b")


def both(document: dict[str, Any], hint: str = "") -> tuple[str, dict[str, Any]]:
    result = shown(document, hint)
    (content,) = result.content
    assert isinstance(content, TextContent)
    assert result.structured_content is not None
    return content.text, result.structured_content


def test_a_result_has_its_facts_as_lines_and_no_field_for_programs() -> None:
    steps = [{"id": "a", "fence": 3, "status": "completed", "output": {"fence": 7}}]
    text, document = both({"title": "Two", "reason": "", "steps": steps}, "call it again")

    assert text.splitlines() == [
        "title: Two",
        "steps:",
        "- id: a",
        "  status: completed",
        "  output:",
        "    fence: 7",
        "call it again",
    ]
    assert document["steps"] == steps


@pytest.mark.parametrize("value", ["x\nstatus: done", {"a\nstatus: done": 1}, ["x\nstatus: done"], "x\x1b[2K\rstatus"])
def test_a_text_of_others_imitates_no_line(value: object) -> None:
    text, _ = both({"status": "running", "output": value})

    assert [line for line in text.splitlines() if line.startswith("status")] == ["status: running"]
    assert "\x1b" not in text


def test_long_texts_are_cut_until_both_forms_are_within_their_bounds() -> None:
    steps = [{"id": f"s{number}", "output": {"rows": ["y" * 1_000] * 40}, "title": "x" * 5_000} for number in range(30)]
    text, document = both({"steps": steps, "next": None})

    assert len(text) <= MAX_TEXT_CHARS + 50
    assert len(json.dumps(document)) <= MAX_DOCUMENT_CHARS
    assert len(document["steps"]) == 30
    assert "(cut: 5,000 characters)" in document["steps"][29]["title"]


def test_only_a_page_has_all_of_its_entries_and_what_is_left_out_is_counted() -> None:
    entries = [{"id": str(number)} for number in range(200)]
    page, whole = both({"items": entries, "next": "200"}), both({"steps": entries})

    assert page[1]["items"] == entries
    assert whole[1]["steps"] == entries[:MAX_ENTRIES]
    assert "150 more steps are left out" in whole[0]


def test_what_is_nested_too_deep_is_left_out_with_a_mark() -> None:
    value: object = "deep"
    for _ in range(20):
        value = {"in": value}

    assert "nested too deep" in both({"data": value})[0]
