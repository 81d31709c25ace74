"""The transcript of a run in the terminal."""

import pytest

from soong.orchestrator.cli.runs import node_text, transcript
from soong.shared.core.jsontext import JsonObject

CALL: JsonObject = {"part_kind": "tool-call", "tool_name": "code__read_file", "args": {"path": "a.md"}}
LONG = "\n".join(map(str, range(30)))


@pytest.mark.parametrize(
    ("kind", "payload", "text"),
    [
        pytest.param("system", {"v": 1, "text": "Be brief."}, "instructions\n  Be brief.", id="instructions"),
        pytest.param("user", {"v": 1, "texts": ["Read a.md\nand b.md"]}, "user\n  Read a.md\n  and b.md", id="user"),
        pytest.param(
            "assistant",
            {"v": 1, "message": {"parts": [{"part_kind": "text", "content": "I read it.\n"}, CALL]}},
            'agent\n  I read it.\n  calls code.read_file {"path": "a.md"}',
            id="words and a call",
        ),
        pytest.param(
            "assistant",
            {"v": 1, "message": {"parts": [{**CALL, "args": '{"path": "a.md"}'}]}},
            'agent\n  calls code.read_file {"path": "a.md"}',
            id="a call as its model wrote it",
        ),
        pytest.param(
            "tool_result",
            {"v": 1, "tool": "code.read_file", "is_error": True, "content": [{"kind": "text", "text": "no such file"}]},
            "code.read_file failed\n  no such file",
            id="a failed call",
        ),
        pytest.param("result", {"v": 1, "output": 1}, 'result\n  {"output": 1}', id="result"),
        pytest.param("user", {"v": 2}, "user\n  {}", id="a form of another version"),
    ],
)
def test_a_node_is_shown_as_what_it_says(kind: str, payload: JsonObject, text: str) -> None:
    assert node_text({"kind": kind, "payload": payload}) == text


def test_a_long_result_is_cut_and_no_escape_reaches_the_terminal() -> None:
    content = [{"kind": "text", "text": LONG}, {"kind": "text", "text": "\x1b[2J"}]

    lines = node_text({"kind": "tool_result", "payload": {"tool": "t", "content": content}}).split("\n")

    assert lines[20:22] == ["  19", "  … and 10 lines more (--json)"]
    assert "\x1b" not in lines[-1]


@pytest.mark.spec("LOG-01.f")
def test_a_transcript_has_the_number_of_each_turn() -> None:
    said: JsonObject = {"kind": "assistant", "payload": {"message": {"parts": [CALL]}}}
    result: JsonObject = {"kind": "tool_result", "payload": {"tool": "code.read_file", "content": [{"text": "# A"}]}}

    text = transcript([{"kind": "user", "payload": {"texts": ["Read."]}}, said, result, said])

    heads = [line for line in text.splitlines() if line and not line.startswith(" ")]
    assert heads == ["user", "agent, turn 1", "code.read_file", "agent, turn 2"]
