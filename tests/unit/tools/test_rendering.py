"""One result, four readers: each gets what it needs and must not get what is another's (RES-06)."""

import pytest

from soong.shared.core.jsontext import JsonObject, dump
from soong.shared.sandbox.redact import MARK, redactor
from soong.shared.tools.definition import HandlerOutput, ToolContext
from soong.shared.tools.pipeline import PipelineConfig
from soong.shared.tools.result import ArtifactRef, ContextNode, ErrorType, JsonBlock, TextBlock, ToolFailure, ToolResult
from soong.shared.tools.results import rendering
from soong.shared.tools.results.rendering import for_model, for_person, for_telemetry, status_of
from tests.unit.tools.parts import make_bench, make_tool

REF = ArtifactRef("ab" * 32, 5_000, "text/plain", "out.txt")
FULL = ToolResult(
    "c1",
    (TextBlock("the content"), JsonBlock({"k": "inner"}), REF),
    summary="a summary",
    data={"data": "for programs"},
    artifacts=(REF,),
    metadata={"truncated": True, "hook_context": ["a hook says"], "secret_word": "meta"},
    context_nodes=(ContextNode("skill", "review", "how to review"),),
    evidence=("c1.1.1", "c1.1.2"),
)
FAILED = ToolResult(
    "c2",
    (TextBlock("text_not_found: no such text\nlook again"), TextBlock("until then:\nhalf of it")),
    summary="text_not_found: no such text",
    data={"near": 3},
    error=ToolFailure(ErrorType.TEXT_NOT_FOUND, "no such text", "look again", {"line": 3}),
)


@pytest.mark.spec("RES-06.a")
def test_a_model_gets_the_content_and_what_hooks_added_and_no_metadata() -> None:
    told = for_model(FULL)

    assert told.content == [
        "the content",
        {"k": "inner"},
        f"[full output: artifact {REF.digest}, 5000 bytes, text/plain]",
        "a hook says",
    ]
    assert (told.outcome, told.metadata) == ("success", {"data": {"data": "for programs"}})
    assert "meta" not in dump(told.content)
    assert "for programs" not in dump(told.content)


@pytest.mark.spec("RES-06.a", "EXE-08")
def test_a_model_gets_an_error_with_what_to_do_and_a_refusal_is_no_failure() -> None:
    told = for_model(FAILED)

    assert told.content == "text_not_found: no such text\nhint: look again\nuntil then:\nhalf of it"
    assert told.outcome == "failed"

    denied = ToolResult("c", error=ToolFailure(ErrorType.PERMISSION_DENIED, "no"))

    assert for_model(denied).outcome == "denied"
    assert status_of(denied) == "denied"
    assert status_of(ToolResult("c", error=denied.error, metadata={"aborted": True})) == "aborted"


@pytest.mark.spec("RES-06.b")
def test_a_person_is_shown_the_content_and_neither_data_nor_metadata() -> None:
    shown = for_person(FULL)

    assert shown.startswith("the content\n")
    assert "for programs" not in shown
    assert "secret_word" not in shown
    assert for_person(FAILED).splitlines() == [
        "text_not_found: no such text",
        "hint: look again",
        "until then:",
        "half of it",
    ]


def test_text_for_a_person_keeps_the_spaces_of_scripts_and_says_by_how_much_it_is_cut() -> None:
    assert for_person(ToolResult("c", (TextBlock("\u3000段落\xa0!"),))) == "\u3000段落\xa0!"

    result = ToolResult("c", (TextBlock("x" * 10_000),), summary="y" * 1_000)

    assert for_person(result, max_chars=100).endswith("… 9900 more characters")


@pytest.mark.spec("RES-06.c", "EVT-03", "EVT-04.c")
def test_telemetry_keeps_facts_and_nothing_of_what_was_said() -> None:
    told = for_telemetry("code.search", FULL, duration_ms=12)
    failed = for_telemetry("code.search", FAILED, duration_ms=1)

    assert told == {
        "tool_call_id": "c1",
        "tool": "code.search",
        "status": "completed",
        "duration_ms": 12,
        "content_chars": len("the content") + len('{"k":"inner"}'),
        "artifacts": [REF.digest],
        "truncated": True,
        "context_nodes": 1,
    }
    assert (failed["status"], failed["error"], failed["retryable"]) == ("failed", "text_not_found", False)
    for word in ('content"', "inner", "summary", "programs", "review", "no such text", "half", "near"):
        assert word not in dump([told, failed])


@pytest.mark.spec("RES-06.d", "RES-01.b")
def test_the_stored_payload_gives_the_result_back_and_refers_to_its_context_nodes() -> None:
    for result in (FULL, FAILED):
        back = rendering.from_json(rendering.to_json("code.search", result))

        assert (back.content, back.data, back.error, back.metadata, back.evidence) == (
            result.content,
            result.data,
            result.error,
            result.metadata,
            result.evidence,
        )
    assert "how to review" not in dump(rendering.to_json("code.search", FULL))
    payload = rendering.context_to_json("c1", "internal.load_skill", FULL.context_nodes[0])
    assert rendering.context_from_json("skill", payload) == FULL.context_nodes[0]
    assert rendering.context_from_json("system", {"v": 1, "text": "you are a worker"}) is None


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
