"""Deferred tools: what a model sees at first, what it finds, and that the set of tools never changes (DEF-01)."""

import json
from typing import Any

import pytest
from msgspec.structs import replace
from pydantic_ai.exceptions import ModelHTTPError
from pydantic_ai.messages import ModelResponse

from soong.orchestrator.client.catalog import Catalogue
from soong.shared.agents.ports import AgentEnd, AgentTask
from soong.shared.core.config import ToolsConfig, parse_config
from soong.shared.core.identity import Role
from soong.shared.core.jsontext import Json, JsonObject
from soong.shared.engine.runs.record import EndReason
from soong.shared.tools.deferred import MAX_LOADED, DeferredTools, ToolSearch, deferred_of, with_search
from soong.shared.tools.definition import Permission, ToolContext, ToolDefinition
from soong.shared.tools.surface import TOOL_SEARCH, SurfaceRequest, compute_surface
from tests.unit.agents.parts import Notebook, make_task, run_task
from tests.unit.agents.test_loop import Talker, calls, says

ON = ToolsConfig(defer=("big.*",))
CONTROL = ToolDefinition(
    "test.note", "Notes.", {"type": "object", "properties": {}}, ToolSearch(ON).tools()[0].handler, Permission.READONLY
)


async def _answer(_context: ToolContext, call_input: JsonObject) -> Json:
    return dict(call_input)


def big(number: int, subject: str = "issue", **more: Any) -> ToolDefinition:
    """Return a tool as servers have them: a name, some sentences, and a dozen described parameters."""
    properties: dict[str, Json] = {
        f"{subject}_{field}": {"type": "string", "description": f"The {field} of the {subject} that is meant."}
        for field in ("id", "title", "body", "state", "owner", "labels", "since", "until", "sort", "page")
    }
    schema: JsonObject = {"type": "object", "properties": properties, "required": [f"{subject}_id"]}
    tool = ToolDefinition(
        f"big.tool_{number}",
        f"Change the {subject} number {number}. Use it when one exists; it fails where there is none. " * 2,
        schema,
        _answer,
        Permission.READONLY,
        search_hint=f"change {subject} {number}",
    )
    return replace(tool, **more)


def catalogue(*tools: ToolDefinition, config: ToolsConfig = ON) -> AgentTask:
    (search,) = ToolSearch(config).tools()
    known = (CONTROL, search, *tools)
    deferred = DeferredTools(frozenset(deferred_of(known, config)))
    return make_task(tools=with_search(known, deferred), deferred=deferred)


async def run(talker: Talker, task: AgentTask, notebook: Notebook | None = None) -> tuple[AgentEnd, Notebook]:
    notebook = notebook or Notebook()
    return await run_task(task, talker.model, notebook), notebook


def offered(talker: Talker) -> list[list[str]]:
    return [[tool.name for tool in info.function_tools] for info in talker.info]


def search(query: str, id_: str = "s1", **more: Any) -> ModelResponse:
    return calls(("internal__tool_search", {"query": query, **more}, id_))


def told(talker: Talker, turn: int) -> str:
    part: Any = talker.told[turn][-1].parts[0]
    return str(part.content)


@pytest.mark.spec("DEF-01.d")
async def test_a_wrong_call_of_a_tool_that_is_not_loaded_names_the_search_and_a_right_one_is_made() -> None:
    talker = Talker(
        calls(("big__tool_1", {"number": 7}, "c1"), ("big__tool_1", {"issue_id": "7"}, "c2")),
        search("big.tool_1"),
        calls(("big__tool_1", {"number": 7}, "c3")),
        says("done"),
    )

    await run(talker, catalogue(big(1), big(2)))

    parts: Any = talker.told[1][-1].parts
    wrong, right = (part.content for part in parts)
    assert wrong.startswith("invalid_input: ")
    assert TOOL_SEARCH in wrong
    assert right == {"issue_id": "7"}
    assert TOOL_SEARCH not in told(talker, 3)


@pytest.mark.spec("DEF-01.b", "DEF-01.a")
async def test_what_was_found_is_still_there_when_another_process_continues_the_run() -> None:
    tools = (big(1), big(2, "pull"), big(3, "wiki"))
    notebook = Notebook()
    refused = [ModelHTTPError(400, "gpt", "no")]
    _, notebook = await run(Talker(search("wiki", limit=1), search("pull", "s2", limit=1), *refused), catalogue(*tools))
    resumed = Talker(says("done"))

    end, _ = await run(resumed, replace(catalogue(*tools), is_resumed=True), notebook)

    assert end.end_reason is EndReason.COMPLETED
    assert offered(resumed) == [["test__note", "internal__tool_search", "big__tool_3", "big__tool_2"]]


@pytest.mark.spec("DEF-01.a", "DEF-01.c")
@pytest.mark.parametrize(
    ("config", "names"),
    [
        ("", []),
        ("defer = ['none.*']", ["big.tool_3"]),
        ("defer = ['big.*']", ["big.tool_1", "big.tool_3"]),
        ("defer = ['*']\nalways_load = ['*_1', 'test.*']", ["big.tool_3"]),
        ("defer = ['big.*']\ndefer_above = 4", ["big.tool_1", "big.tool_3"]),
        ("defer = ['big.*']\ndefer_above = 5", []),
    ],
    ids=["off", "declared", "pattern", "always", "above", "below"],
)
def test_what_is_deferred_is_said_by_the_configuration_and_the_tools(config: str, names: list[str]) -> None:
    wanted = parse_config(f"[tools]\n{config}").tools
    tools = (CONTROL, *ToolSearch(wanted).tools(), big(1), big(2, always_load=True), big(3, defer=True))

    assert list(deferred_of(tools, wanted)) == names


@pytest.mark.spec("DEF-01.a", "ETS-01.i")
async def test_a_search_finds_nothing_that_is_not_in_the_tool_set() -> None:
    (found,) = ToolSearch(ON).tools()
    every = (found, big(1), big(2, "pull"))
    surface = compute_surface(every, SurfaceRequest(Role.WORKER, allowed_tools=("big.tool_1",)))
    assert surface.tools == (TOOL_SEARCH, "big.tool_1")
    tools = tuple(tool for tool in every if tool.name in surface.tools)
    deferred = DeferredTools(frozenset(deferred_of(tools, ON)))
    talker = Talker(search("pull big.tool_2"), calls(("big__tool_2", {"pull_id": "7"}, "c1")), says("done"))

    await run(talker, make_task(tools=with_search(tools, deferred), deferred=deferred))

    assert "big.tool_2" not in told(talker, 1)
    assert "tool_not_available" in told(talker, 2)


@pytest.mark.spec("DEF-01.a")
@pytest.mark.parametrize("role", Role)
def test_without_configuration_there_is_no_search(role: Role) -> None:
    catalogue_ = Catalogue()

    assert TOOL_SEARCH not in compute_surface(catalogue_.tools, SurfaceRequest(role)).tools


async def test_the_number_of_loaded_tools_is_bounded() -> None:
    tools = [big(number) for number in range(MAX_LOADED + 10)]
    ids = [" ".join(tool.name for tool in tools[start : start + 10]) for start in range(0, len(tools), 10)]
    talker = Talker(*(search(query, f"s{at}", limit=10) for at, query in enumerate(ids)), says("done"))

    await run(talker, catalogue(*tools))

    assert len(offered(talker)[-1]) == 2 + MAX_LOADED
    assert "limit_exceeded" in told(talker, 7)


@pytest.mark.spec("DEF-01.a")
async def test_a_catalogue_of_300_tools_costs_a_tenth_when_it_is_deferred() -> None:
    tools = [big(number, subject) for number, subject in enumerate(("issue", "pull", "wiki") * 100)]
    sizes = {}
    for config in (ToolsConfig(), ON):
        talker = Talker(says("done"))
        await run(talker, catalogue(*tools, config=config))
        sent = [(each.name, each.description, each.parameters_json_schema) for each in talker.info[0].function_tools]
        sizes[bool(config.defer)] = len(json.dumps(sent))

    assert sizes[True] * 10 < sizes[False], sizes
