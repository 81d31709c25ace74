from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace
from pydantic_ai.exceptions import ModelConnectionError, ModelHTTPError
from pydantic_ai.messages import ModelMessage, ModelRequest, ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import AgentInfo, FunctionModel

from soong.shared.agents.definition import AgentLimits
from soong.shared.agents.ports import GIVEN_UP, AgentEnd, AgentTask
from soong.shared.agents.turn import FINAL_TOOL
from soong.shared.core.jsontext import Json, JsonObject
from soong.shared.engine.runs.events import EventType, NodeKind
from soong.shared.engine.runs.record import EndReason
from soong.shared.engine.tasks.step import Outcome
from soong.shared.tools.definition import Permission, ToolContext, ToolDefinition
from soong.shared.tools.result import ErrorType, ToolError
from tests.unit.agents.parts import Notebook, RuleGate, make_task, no_pause, run_task

SCHEMA: JsonObject = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}


class Talker:
    """A model that says what it is given, one answer after the other, and keeps what it was told."""

    def __init__(self, *answers: ModelResponse | Exception, name: str | None = None) -> None:
        self.answers = list(answers)
        self.told: list[list[ModelMessage]] = []
        self.info: list[AgentInfo] = []
        self.model = FunctionModel(self._answer, model_name=name)

    def _answer(self, messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        self.told.append(list(messages))
        self.info.append(info)
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


def says(text: str) -> ModelResponse:
    return ModelResponse(parts=[TextPart(text)])


def calls(*parts: tuple[str, dict[str, Any], str]) -> ModelResponse:
    return ModelResponse(parts=[ToolCallPart(name, arguments, id_) for name, arguments, id_ in parts])


def final(value: Any, id_: str = "f1") -> ModelResponse:
    return calls((FINAL_TOOL, value, id_))


async def _shout(_context: ToolContext, call_input: JsonObject) -> Json:
    return str(call_input["text"]).upper()


async def _break(_context: ToolContext, _call_input: JsonObject) -> Json:
    raise ToolError(ErrorType.EXECUTION_FAILED, "it broke", details={"stop_run": True})  # only a hook can stop


TEXT: JsonObject = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}
SHOUT = ToolDefinition("test.shout", "Shouts.", TEXT, _shout, Permission.READONLY)
WRITE = ToolDefinition("test.write_it", "Writes.", TEXT, _shout, Permission.WRITE)
BREAK = ToolDefinition("test.break", "Breaks.", {"type": "object", "properties": {}}, _break, Permission.READONLY)


async def run(
    talker: Talker,
    task: AgentTask | None = None,
    *,
    notebook: Notebook | None = None,
    gate: RuleGate | None = None,
    sleep: Callable[[float], Any] = no_pause,
) -> tuple[AgentEnd, Notebook]:
    task = task or make_task()
    task = replace(task, tools=task.tools or (SHOUT, WRITE, BREAK))
    notebook = notebook or Notebook()
    return await run_task(task, talker.model, notebook, gate=gate, sleep=sleep), notebook


def error_told(talker: Talker) -> dict[str, str]:
    """Return the error that the model was given with its second request."""
    part: Any = talker.told[1][-1].parts[0]
    return dict(part.metadata["error"])


@pytest.mark.spec("RES-02.a")
async def test_results_are_given_in_the_order_of_the_calls_and_paired_by_id() -> None:
    talker = Talker(
        calls(("test__shout", {"text": "a"}, "c1"), ("test__shout", {"text": "b"}, "c2")),
        calls(("test__shout", {"text": "c"}, "c1")),  # a provider that counts from one again each turn
        says("done"),
    )

    _, notebook = await run(talker)

    first, second = talker.told[1][-1], talker.told[2][-1]
    assert isinstance(first, ModelRequest)
    assert isinstance(second, ModelRequest)
    assert [(part.tool_call_id, part.content) for part in first.parts if part.part_kind == "tool-return"] == [
        ("c1", "A"),
        ("c2", "B"),
    ]
    ids = [node.payload["tool_call_id"] for node in notebook.written if node.kind is NodeKind.TOOL_RESULT]
    assert len(set(ids)) == 3
    assert [part.content for part in second.parts if part.part_kind == "tool-return"] == ["C"]


@pytest.mark.spec("DIS-08.c")
@pytest.mark.parametrize(
    "answers",
    [
        pytest.param([final({"n": 3})], id="by-the-output-tool"),
        pytest.param([final('{"n": 3}')], id="as-json-text-in-the-call"),
        pytest.param([says('{"n": 3}')], id="as-text"),
        pytest.param([final({"n": "three"}), final({"n": 3}, "f2")], id="mended-after-a-violation"),
        pytest.param([says("three"), final({"n": 3})], id="asked-again-for-the-output-tool"),
        pytest.param([final("{n: 3}"), final({"n": 3}, "f2")], id="mended-json"),
        pytest.param([ModelResponse(parts=[]), final({"n": 3})], id="after-an-empty-answer"),
    ],
)
async def test_an_output_holds_to_the_steps_schema(answers: list[ModelResponse]) -> None:
    end, _ = await run(Talker(*answers), make_task(output_schema=SCHEMA))

    assert (end.end_reason, end.output) == (EndReason.COMPLETED, {"n": 3})


async def test_an_output_that_never_holds_ends_the_run_after_a_few_tries() -> None:
    talker = Talker(*(final({"n": "x"}, f"f{n}") for n in range(10)))

    end, _ = await run(talker, make_task(output_schema=SCHEMA, limits=AgentLimits(max_reasks=2)))

    assert len(talker.told) == 3
    assert end.end_reason is EndReason.FAILED
    assert end.error is not None
    assert (end.error.type, end.error.retryable) == ("invalid_output", True)


async def test_an_answer_beside_other_calls_does_not_count_before_their_results_are_seen() -> None:
    both = calls(("test__write_it", {"text": "x"}, "c1"), (FINAL_TOOL, {"n": 1}, "f1"))
    talker = Talker(both, final({"n": 2}, "f2"))

    end, _ = await run(talker, make_task(output_schema=SCHEMA), gate=RuleGate(allows=lambda _call: False))

    results = {part.tool_call_id: part for part in talker.told[1][-1].parts if part.part_kind == "tool-return"}
    assert results["c1"].outcome == "denied"
    assert results["f1"].outcome == "failed"
    assert (end.output, end.outcome) == ({"n": 2}, Outcome.PARTIAL)


@pytest.mark.parametrize(
    ("text", "output"),
    [
        pytest.param('{"a": [1]}', {"a": [1]}, id="object"),
        pytest.param("[1, 2]", [1, 2], id="array"),
        pytest.param("42", "42", id="number-stays-text"),
        pytest.param("{not json", "{not json", id="text"),
    ],
)
async def test_without_a_schema_the_text_is_the_output(text: str, output: Json) -> None:
    end, _ = await run(Talker(says(text)))

    assert end.output == output


@pytest.mark.spec("DIS-07.b")
async def test_a_run_that_has_used_its_tokens_asks_no_more() -> None:
    talker = Talker(*(calls(("test__shout", {"text": "x"}, f"c{n}")) for n in range(9)))
    alone, _ = await run(Talker(calls(("test__shout", {"text": "x"}, "c0")), says("done")))
    one_answer = (alone.usage.input_tokens + alone.usage.output_tokens) // 2

    end, _ = await run(talker, make_task(limits=AgentLimits(tokens=6 * one_answer)))

    assert end.end_reason is EndReason.TOKEN_LIMIT
    assert end.error is not None
    assert f"of its {6 * one_answer} tokens" in end.error.message
    assert 1 < len(talker.told) < 9
    assert any("Finish soon" in str(messages) for messages in talker.told)


@pytest.mark.spec("DIS-07", "DAG-03")
@pytest.mark.parametrize(
    ("reported", "turns"),
    [
        pytest.param({"step": "a", "status": "completed"}, 6, id="a-step-that-is-done"),
        pytest.param({"step": "a", "progress": "half"}, 3, id="progress"),
    ],
)
async def test_each_step_that_a_run_ends_beside_its_own_gives_it_the_turns_of_one_more(
    reported: Json, turns: int
) -> None:
    async def report(_context: ToolContext, _call_input: JsonObject) -> Json:
        return reported

    tool = replace(BREAK, name="agent.task_update_step", handler=report)
    talker = Talker(
        calls(("agent__task_update_step", {}, "c0")),
        *(calls(("test__shout", {"text": "x"}, f"c{n}")) for n in range(1, 9)),
    )

    end, _ = await run(talker, make_task(tools=(SHOUT, tool), limits=AgentLimits(max_turns=3)))

    assert len(talker.told) == turns
    assert end.end_reason is EndReason.MAX_TURNS


async def test_a_run_that_reports_its_own_step_as_failed_ends_so_without_another_turn() -> None:
    async def report(_context: ToolContext, call_input: JsonObject) -> Json:
        return {"step": "own", GIVEN_UP: "there is no printer"}

    tool = replace(BREAK, name="agent.task_update_step", handler=report)
    talker = Talker(calls(("agent__task_update_step", {}, "c0")), says("never asked"))

    end, notebook = await run(talker, make_task(tools=(tool,)))
    again = Talker(says("never asked"))
    resumed, _ = await run(
        again, make_task(tools=(tool,), is_resumed=True), notebook=Notebook(written=list(notebook.written))
    )

    for one in (end, resumed):
        assert one.error is not None
        assert (one.end_reason, one.error.type, one.error.message) == (
            EndReason.FAILED,
            "failed",
            "there is no printer",
        )
    assert (len(talker.told), len(again.told)) == (1, 0)


@pytest.mark.spec("DIS-09.a")
async def test_a_provider_that_recovers_is_asked_again_after_a_growing_pause() -> None:
    pauses: list[float] = []

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)

    limited = ModelHTTPError(status_code=429, model_name="m", body=None)
    away = ModelConnectionError("m", "connection reset")
    talker = Talker(limited, away, says("done"))

    end, notebook = await run(talker, sleep=sleep)

    assert end.output == "done"
    assert len(pauses) == 2
    assert pauses[0] < 1.0 <= pauses[1] <= 2.0
    # A pause that is shown is written with what came before it; the rest is left for the end.
    left = [event.data["attempt"] for event in end.events if event.type == EventType.MODEL_FAILED]
    assert left == [1, 2][2 - len(left) :]
    assert notebook.events.count(EventType.MODEL_FAILED) + len(left) == 2


# -- the ends of an answer
def cut(*parts: Any) -> ModelResponse:
    """Return an answer that reached the model's limit of output tokens."""
    return ModelResponse(parts=parts, finish_reason="length")


@pytest.mark.spec("DIS-12.b")
async def test_a_cut_result_does_not_count_even_where_it_holds_to_its_schema() -> None:
    talker = Talker(cut(ToolCallPart(FINAL_TOOL, {"n": 1}, "f1")), final({"n": 2}, "f2"))

    end, _ = await run(talker, make_task(output_schema=SCHEMA))

    assert end.output == {"n": 2}
    assert "cut at the limit" in error_told(talker)["message"]


@pytest.mark.spec("DIS-12.b")
async def test_of_cut_calls_those_with_whole_arguments_run() -> None:
    parts = (ToolCallPart("test__shout", {"text": "a"}, "c1"), ToolCallPart("test__shout", '{"text": "b', "c2"))
    talker = Talker(cut(*parts), says("done"))

    end, _ = await run(talker)

    told: list[Any] = list(talker.told[1][-1].parts)
    assert told[0].content == "A"
    assert told[1].content.startswith("invalid_input: ")
    assert end.output == "done"


async def test_calls_between_two_cut_texts_part_them() -> None:
    talker = Talker(cut(TextPart("lost ")), calls(("test__shout", {"text": "a"}, "c1")), says("whole"))

    end, _ = await run(talker)

    assert end.output == "whole"


async def test_a_run_taken_up_again_counts_the_cut_answers_before_it() -> None:
    first = Talker(cut(TextPart("one ")), cut(TextPart("two ")), ModelHTTPError(401, "m", "no"))
    _, notebook = await run(first)
    notebook.written = [node for node in (*notebook.written, *_.nodes) if node.kind is not NodeKind.RESULT]

    end, _ = await run(Talker(says("three")), make_task(is_resumed=True), notebook=notebook)

    assert end.output == "one two three"


@pytest.mark.spec("DIS-12.a")
async def test_what_the_content_filter_stopped_is_no_result() -> None:
    answer = ModelResponse(parts=[TextPart("Half of")], finish_reason="content_filter")

    end, _ = await run(Talker(answer))

    assert end.end_reason is EndReason.FAILED
    assert end.error is not None
    assert (end.error.type, end.error.retryable) == ("content_filter", False)
