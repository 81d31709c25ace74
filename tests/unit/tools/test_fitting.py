"""What of a result is kept: no secret, also not one that a terminal would put together."""

import pytest

from soong.shared.core.jsontext import JsonObject
from soong.shared.sandbox.redact import MARK, redactor
from soong.shared.tools.definition import HandlerOutput, ToolContext
from soong.shared.tools.pipeline import PipelineConfig
from soong.shared.tools.result import TextBlock, ToolResult
from tests.unit.tools.parts import make_bench, make_tool

SECRET = "correct-horse-battery"


@pytest.mark.spec("EVT-05", "RES-03")
@pytest.mark.parametrize(
    "printed",
    [
        pytest.param(SECRET, id="plain"),
        pytest.param("correct-\x1b[0mhorse\x1b[1m-battery", id="colours-inside"),
        pytest.param("correct-\x1b]0;title\x07horse-battery", id="title-inside"),
    ],
)
async def test_a_secret_is_in_no_artifact_however_it_was_printed(printed: str) -> None:
    original = f"{'x' * 300} {printed} {'y' * 300}".encode()

    async def speak(context: ToolContext, _call_input: JsonObject) -> HandlerOutput:
        return ToolResult(context.tool_call_id, (TextBlock("what was printed", original=original),))

    bench = make_bench(
        [make_tool(handler=speak)], redactor=redactor([SECRET]), config=PipelineConfig(max_result_chars=200)
    )
    await bench.call("test.echo")

    [kept] = bench.artifacts.stored
    assert b"horse" not in kept
    assert MARK.encode() in kept
    assert kept.startswith(b"xxx")
    assert kept.endswith(b"yyy")
