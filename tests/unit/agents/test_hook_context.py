"""What hooks add reaches the model, whatever became of the call."""

import pytest
from pydantic_ai.messages import ModelResponse, ToolCallPart, ToolReturnPart

from soong.shared.agents.messages import answer_parts
from soong.shared.tools.result import ErrorType, ToolFailure, ToolResult
from soong.shared.tools.results.normalize import refusal
from soong.shared.tools.results.rendering import from_json, to_json

ASKED = ModelResponse(parts=[ToolCallPart("code__read_file", {}, "c1")])


def told(result: ToolResult) -> object:
    stored = from_json(to_json("code.read_file", result))
    (part,) = answer_parts(ASKED, [stored])
    assert isinstance(part, ToolReturnPart)
    return part.content


@pytest.mark.spec("EXE-13")
def test_a_hooks_context_is_shown_with_an_error() -> None:
    result = refusal("c1", ToolFailure(ErrorType.FILE_NOT_FOUND, "gone"), None, hook_context=["it was renamed"])

    assert told(result) == "file_not_found: gone\nit was renamed"
