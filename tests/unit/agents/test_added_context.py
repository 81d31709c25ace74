from collections.abc import Callable, Sequence
from itertools import permutations
from typing import Any

import pytest
from pydantic_ai.messages import ModelMessage, ModelRequest, ModelResponse, ToolCallPart, ToolReturnPart

from soong.shared.agents.messages import answer_parts
from soong.shared.agents.ports import AgentEnd
from soong.shared.core.jsontext import JsonObject
from soong.shared.engine.runs.events import NewNode, NodeKind
from soong.shared.tools.definition import HandlerOutput, Permission, ToolContext, ToolDefinition, Traits
from soong.shared.tools.result import ContextNode, ErrorType, TextBlock, ToolFailure, ToolResult
from soong.shared.tools.results.normalize import refusal
from soong.shared.tools.results.rendering import from_json, to_json
from tests.unit.agents.parts import Notebook, make_task, run_task
from tests.unit.agents.test_loop import Talker, calls, error_told, says

NAME: JsonObject = {"type": "object", "properties": {"name": {"type": "string"}}}


async def load(_context: ToolContext, call_input: JsonObject) -> HandlerOutput:
    name = str(call_input["name"])
    node = ContextNode("system" if name.endswith(".md") else "skill", name, f"the text of {name}")
    return ToolResult("", (TextBlock(f"loaded {name}"),), context_nodes=(node,))


async def note(_context: ToolContext, call_input: JsonObject) -> HandlerOutput:
    return str(call_input["name"])


LOAD = ToolDefinition(
    "internal.load", "Loads.", NAME, load, Permission.READONLY, traits=lambda _: Traits(is_read_only=True)
)
NOTE = ToolDefinition("test.note", "Notes.", NAME, note, Permission.READONLY, aliases=("Note",))


async def play(talker: Talker, notebook: Notebook, *, is_resumed: bool = False) -> AgentEnd:
    return await run_task(make_task(tools=(LOAD, NOTE), is_resumed=is_resumed), talker.model, notebook)


def answers() -> list[ModelResponse]:
    return [
        calls(
            ("internal__load", {"name": "review"}, "c1"),
            ("test__note", {"name": "n"}, "c2"),
            ("internal__load", {"name": "AGENTS.md"}, "c3"),
        ),
        says("done"),
    ]


def shown(messages: Sequence[ModelMessage]) -> list[tuple[str, Any]]:
    return [
        (part.part_kind, getattr(part, "content", None))
        for message in messages
        if isinstance(message, ModelRequest)
        for part in message.parts
    ]


@pytest.mark.spec("RES-01")
async def test_added_context_follows_the_results_in_the_order_of_the_calls() -> None:
    talker, notebook = Talker(*answers()), Notebook()

    await play(talker, notebook)

    assert shown(talker.told[1][-1:]) == [
        ("tool-return", "loaded review"),
        ("tool-return", "n"),
        ("tool-return", "loaded AGENTS.md"),
        ("user-prompt", "Skill review:\nthe text of review"),
        ("system-prompt", "Instructions of this project, AGENTS.md:\nthe text of AGENTS.md"),
    ]


@pytest.mark.spec("RES-01", "DAG-07", "EVT-01.b")
async def test_after_a_crash_anywhere_the_model_learns_the_same() -> None:
    live, notebook = Talker(*answers()), Notebook()
    end = await play(live, notebook)
    nodes = [*notebook.written, *end.nodes]
    told = shown(live.told[1])

    for ended in permutations(_transactions(nodes[3:-2])):  # calls that ran beside each other end in any order
        for cut in range(len(ended) + 1):
            again, kept = Talker(answers()[1]), [node for each in ended[:cut] for node in each]

            await play(again, Notebook(written=[*nodes[:3], *kept]), is_resumed=True)

            assert shown(again.told[0]) == told


def _transactions(nodes: Sequence[NewNode]) -> list[list[NewNode]]:
    """Return the nodes as they are written: each result with what its call added."""
    written: list[list[NewNode]] = []
    for node in nodes:
        if node.kind is NodeKind.TOOL_RESULT:
            written.append([])
        written[-1].append(node)
    return written


@pytest.mark.spec("RES-02.b", "REG-03")
@pytest.mark.parametrize(
    "raw", ["", "x" * 500, "a\0b", "\ud800", "two words"], ids=["none", "long", "nul", "lone", "space"]
)
async def test_a_call_id_that_is_missing_or_unusable_becomes_ours(raw: str) -> None:
    notebook = Notebook()
    both = calls(("test__note", {"name": "a"}, raw), ("test__note", {"name": "b"}, raw))
    talker = Talker(both, says("done"))

    await play(talker, notebook)

    results = [part for part in talker.told[1][-1].parts if part.part_kind == "tool-return"]
    ids = [part.tool_call_id for part in results]
    assert [part.content for part in results] == ["a", "b"]
    assert ids == ["call_1", "call_2"]
    assert [node.payload["tool_call_id"] for node in notebook.written if node.kind is NodeKind.TOOL_RESULT] == ids


@pytest.mark.spec("REG-03.c")
async def test_the_providers_own_name_and_id_stay_beside_the_call() -> None:
    seen: list[Any] = []

    class Watching(Notebook):
        async def started(self, started: Any) -> None:
            seen.append((started.call.tool, started.call.raw))

    await play(Talker(calls(("test__note", {"name": "a"}, "an id")), says("done")), Watching())

    assert seen == [("test.note", {"name": "test__note", "id": "an id"})]


@pytest.mark.spec("SCH-03")
@pytest.mark.parametrize(
    "arguments",
    [
        # Made by the test, not in each process of a run.
        pytest.param(lambda: {"name": "x" * 100_000_000}, id="100 MB"),
        pytest.param(lambda: "x" * 100_000_000, id="100 MB of text"),
        pytest.param(lambda: {"name": float("nan")}, id="nan"),
        pytest.param(lambda: "[" * 10_000 + "]" * 10_000, id="10,000 levels"),
    ],
)
async def test_arguments_nobody_should_read_are_refused_and_not_kept_in_the_history(
    arguments: Callable[[], Any],
) -> None:
    talker = Talker(ModelResponse(parts=[ToolCallPart("test__note", arguments(), "c1")]), says("done"))
    notebook = Notebook()

    end = await play(talker, notebook)

    assert end.output == "done"
    assert error_told(talker)["type"] == "invalid_input"
    assert len(repr(notebook.written)) < 50_000
    assert len(repr(talker.told[1])) < 50_000


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
