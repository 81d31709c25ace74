"""A session's tools for agents that are not ours, theirs as ours (REG-11, REG-12), results and lists for them."""

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from acp.exceptions import RequestError
from langchain_core.tools import tool as langchain_tool
from mcp.types import Tool as McpTool
from mcp_types import TextContent
from msgspec.structs import replace
from openai.types.chat import ChatCompletionFunctionToolParam
from pydantic import TypeAdapter
from pydantic_ai import Agent
from pydantic_ai.exceptions import ModelRetry
from pydantic_ai.messages import ModelMessage, ModelRequest, ModelResponse, TextPart, ToolCallPart, ToolReturnPart
from pydantic_ai.models.function import AgentInfo, FunctionModel
from pydantic_ai.toolsets import FunctionToolset

from soong import (
    Choice,
    DirectSession,
    PermissionDecision,
    PermissionRequest,
    Toolset,
    export_tools,
    from_langchain,
    from_pydantic_ai,
    open_tools,
    pydantic_ai_toolset,
)
from soong.orchestrator.acp.agent import OrchestratorAgent
from soong.orchestrator.client.client import Client
from soong.orchestrator.http.app import make_routes
from soong.orchestrator.mcp.api import MAX_DOCUMENT_CHARS, MAX_TEXT_CHARS, shown
from soong.orchestrator.operations.authentication import local_caller
from soong.orchestrator.operations.calls import DirectCalls
from soong.orchestrator.operations.context import ServiceParts
from soong.shared.core.errors import InvalidToolError
from soong.shared.core.settings import load_settings
from soong.shared.core.timing import SystemClock
from soong.shared.engine.tasks.asks import ask_document
from soong.shared.engine.tasks.spec import StepSpec, TaskKind
from soong.shared.engine.wire.bus import MemoryBus
from soong.shared.permissions.request import Provenance
from soong.shared.tools.result import ErrorType
from tests.model.builders import make_session, make_task, open_session
from tests.model.memory.store import MemoryStore


class Person:
    """Answers every question alike and remembers it."""

    def __init__(self, choice: Choice) -> None:
        self.choice = choice
        self.asked: list[PermissionRequest] = []

    async def __call__(self, request: PermissionRequest) -> PermissionDecision:
        self.asked.append(request)
        return PermissionDecision(self.choice, "so it is")


@pytest.fixture
def person() -> Person:
    return Person(Choice.ALLOW_ONCE)


@pytest.fixture
async def session(tmp_path: Path, person: Person) -> AsyncIterator[DirectSession]:
    project = tmp_path / "project"
    project.mkdir()
    async with open_tools(project=project, agent_home=tmp_path / "home", permission_callback=person) as opened:
        yield opened


@pytest.mark.spec("REG-11.a")
async def test_openai_function_tools_have_its_form_and_lead_back_to_the_call(session: DirectSession) -> None:
    exported = export_tools(session)
    tools = TypeAdapter(list[ChatCompletionFunctionToolParam]).validate_python(exported.openai())

    assert [one["type"] for one in tools] == ["function"] * len(session.tools())
    by_name = {one["function"]["name"]: one["function"] for one in tools}
    assert len(by_name) == len(session.tools())
    jsonschema.Draft202012Validator.check_schema(by_name["code__write_file"]["parameters"])
    result = await exported.call("code__write_file", json.dumps({"path": "x", "content": "made"}))
    assert result.error is None
    assert (session.run_dirs.project / "x").read_text() == "made"


@pytest.mark.spec("REG-11.b", "REG-11.c")
async def test_anthropic_and_mcp_tools_have_their_forms(session: DirectSession) -> None:
    tools = export_tools(session).anthropic()

    assert {frozenset(one) for one in tools} == {frozenset({"name", "description", "input_schema"})}
    assert "code__read_file" in [one["name"] for one in tools]

    of_mcp = [McpTool.model_validate(one) for one in export_tools(session).mcp()]

    hints = {one.name: one.annotations.read_only_hint for one in of_mcp if one.annotations is not None}
    assert (hints["code.read_file"], hints["code.write_file"]) == (True, False)


def writing_model(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
    """Write a file, then say what the tool answered."""
    last = messages[-1]
    answers = (
        [part for part in last.parts if isinstance(part, ToolReturnPart)] if isinstance(last, ModelRequest) else []
    )
    if answers:
        return ModelResponse([TextPart(str(answers[0].content))])
    assert "code__write_file" in [tool.name for tool in info.function_tools]
    return ModelResponse([ToolCallPart("code__write_file", {"path": "made", "content": "by an agent"})])


@pytest.mark.spec("REG-11.d", "PER-05")
async def test_an_agent_of_pydantic_ai_asks_the_sessions_callback(session: DirectSession, person: Person) -> None:
    agent = Agent(FunctionModel(writing_model), toolsets=[pydantic_ai_toolset(session)])

    said = (await agent.run("Write it.")).output

    assert [request.tool for request in person.asked] == ["code.write_file"]
    assert "created made" in said
    assert (session.run_dirs.project / "made").read_text() == "by an agent"


@pytest.mark.spec("REG-11.d", "PER-05")
async def test_what_a_person_denies_is_told_to_the_agent_and_not_done(session: DirectSession, person: Person) -> None:
    person.choice = Choice.DENY
    agent = Agent(FunctionModel(writing_model), toolsets=[pydantic_ai_toolset(session)])

    said = (await agent.run("Write it.")).output

    assert "permission_denied" in said
    assert "so it is" in said
    assert not (session.run_dirs.project / "made").exists()


@pytest.mark.spec("REG-11")
async def test_a_name_that_is_no_tool_and_arguments_that_do_not_fit_are_results(session: DirectSession) -> None:
    exported = export_tools(session)

    unknown = await exported.call("code__nothing", {})
    wrong = await exported.call("code__read_file", "[1")

    assert unknown.error is not None and unknown.error.type is ErrorType.TOOL_NOT_AVAILABLE  # noqa: PT018
    assert wrong.error is not None and wrong.error.type is ErrorType.INVALID_INPUT  # noqa: PT018


def _functions() -> FunctionToolset[Any]:
    toolset = FunctionToolset[Any]()

    @toolset.tool_plain
    def add(x: int, y: int = 2) -> int:
        """Add two numbers."""
        return x + y

    @toolset.tool_plain
    def refuse(word: str) -> str:
        """Refuse."""
        raise ModelRetry(f"{word} is not a number")

    return toolset


@langchain_tool
def shout(text: str) -> str:
    """Say it louder."""
    return text.upper()


@langchain_tool
async def Slow_Count(limit: int) -> list[int]:  # noqa: N802  # names of other libraries are as they are
    """Count."""
    return list(range(limit))


@pytest.mark.spec("REG-12.c", "PER-11")
@pytest.mark.parametrize("library", ["pydantic_ai", "langchain"])
async def test_a_tool_of_another_library_asks_unless_its_user_says_that_it_only_reads(
    tmp_path: Path, person: Person, library: str
) -> None:
    def made(**more: Any) -> Toolset:
        if library == "langchain":
            return from_langchain([shout, Slow_Count], "team", **more)
        return from_pydantic_ai(_functions(), "team", **more)

    names: dict[str, tuple[str, dict[str, Any], Any]] = {
        "langchain": ("shout", {"text": "hello"}, "HELLO"),
        "pydantic_ai": ("add", {"x": 1}, 3),
    }
    name, arguments, expected = names[library]
    given: tuple[dict[str, Any], ...] = ({}, {"readonly": [name]})
    for more in given:
        person.asked.clear()
        options: dict[str, Any] = {"project": tmp_path, "agent_home": tmp_path / "home", "permission_callback": person}
        async with open_tools(tools=[made(**more)], **options) as session:
            result = await session.call(f"team.{name}", arguments)
            definition = session.registry.get(f"team.{name}")

        assert result.error is None, result.error
        assert result.data == expected
        assert len(person.asked) == 1  # it reaches out, whatever it changes
        assert definition is not None
        assert definition.reaches_out


@pytest.mark.spec("REG-12.c", "SCH-03")
async def test_its_arguments_are_validated_before_anybody_is_asked_and_its_errors_are_results(
    tmp_path: Path, person: Person
) -> None:
    sources = [from_pydantic_ai(_functions(), "math"), from_langchain([Slow_Count], "chain")]
    options: dict[str, Any] = {"project": tmp_path, "agent_home": tmp_path / "home", "permission_callback": person}
    async with open_tools(tools=sources, **options) as session:
        wrong = await session.call("math.add", {"x": "one"})
        assert not person.asked
        refused = await session.call("math.refuse", {"word": "two"})
        counted = await session.call("chain.slow_count", {"limit": 3})

    assert wrong.error is not None and wrong.error.type is ErrorType.INVALID_INPUT  # noqa: PT018
    assert refused.error is not None and "two is not a number" in refused.error.message  # noqa: PT018
    assert counted.data == [0, 1, 2]


@pytest.mark.spec("REG-12.c")
def test_a_readonly_that_names_no_tool_is_refused() -> None:
    with pytest.raises(InvalidToolError, match="only shout"):
        from_langchain([shout], "team", readonly=["shuot"])


@pytest.mark.spec("REG-12.b")
async def test_a_toolset_is_switched_off_as_one_or_tool_by_tool(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    (home / "config.toml").write_text('[tools]\nhidden = ["chain.*", "math.add"]\n')
    sources = [from_pydantic_ai(_functions(), "math"), from_langchain([shout, Slow_Count], "chain")]

    async with open_tools(tools=sources, project=tmp_path, agent_home=home) as session:
        own = [tool.name for tool in session.tools() if tool.name.partition(".")[0] in ("math", "chain")]

    assert own == ["math.refuse"]


@pytest.mark.spec("ACP-02", "PER-01")
async def test_only_sessions_of_the_callers_principal_are_listed(tmp_path: Path) -> None:
    store, board = MemoryStore(), MemoryBus()
    settings = load_settings(agent_home=tmp_path, principal="ann")
    client = Client(store, board, board, SystemClock(), settings)
    for principal in ("ann", "bob"):
        session = make_session(f"sess_{principal}", principal=principal, project=str(tmp_path), cwd=str(tmp_path))
        ownership = await open_session(store, session)
        task = make_task(ownership.session_id)
        await store.tasks.create_task(replace(task, kind=TaskKind.ASK, plan=ask_document(StepSpec(id="ask"))))

    async def connected() -> DirectCalls:
        parts = ServiceParts(client, None, None)  # type: ignore[arg-type]  # what nobody asks for here
        caller = local_caller("ann", Provenance(), "acp", client.clock.now_us())
        return DirectCalls(make_routes(parts), caller)

    agent = OrchestratorAgent(settings, "", connected)
    listed = await agent.list_sessions()

    assert [one.session_id for one in listed.sessions] == ["sess_ann"]
    with pytest.raises(RequestError):
        await agent.load_session(str(tmp_path), "sess_bob")


def both(document: dict[str, Any], hint: str = "") -> tuple[str, dict[str, Any]]:
    result = shown(document, hint)
    (content,) = result.content
    assert isinstance(content, TextContent)
    assert result.structured_content is not None
    return content.text, result.structured_content


@pytest.mark.spec("MCP-02.b")
@pytest.mark.parametrize("value", ["x\nstatus: done", {"a\nstatus: done": 1}, ["x\nstatus: done"], "x\x1b[2K\rstatus"])
def test_a_text_of_others_imitates_no_line(value: object) -> None:
    text, _ = both({"status": "running", "output": value})

    assert [line for line in text.splitlines() if line.startswith("status")] == ["status: running"]
    assert "\x1b" not in text


@pytest.mark.spec("MCP-02.b")
def test_long_texts_are_cut_until_both_forms_are_within_their_bounds() -> None:
    steps = [{"id": f"s{number}", "output": {"rows": ["y" * 1_000] * 40}, "title": "x" * 5_000} for number in range(30)]
    text, document = both({"steps": steps, "next": None})

    assert len(text) <= MAX_TEXT_CHARS + 50
    assert len(json.dumps(document)) <= MAX_DOCUMENT_CHARS
    assert len(document["steps"]) == 30
    assert "(cut: 5,000 characters)" in document["steps"][29]["title"]
