"""An agent of the OpenAI Agents SDK as it is, on a wire server (BYO-02)."""

from collections.abc import AsyncIterator
from typing import Any

import pytest
from agents import (
    Agent,
    LocalShellTool,
    OpenAIChatCompletionsModel,
    OpenAIResponsesModel,
    RunContextWrapper,
    function_tool,
    handoff,
)
from llmock.scenarios import Reply, ToolCall
from openai import AsyncOpenAI
from pydantic import BaseModel

from soong.shared.agents.own.registration import register_agent
from soong.shared.core.errors import InvalidConfigError
from soong.shared.engine.runs.record import EndReason
from soong.shared.engine.tasks.step import Outcome
from tests.wires.own_run import READ, Ledger, OwnRun, World, denied_with_a_busy_provider, killed_at_every_border
from tests.wires.wire import Wires

NAME = "tests.triage"


class Report(BaseModel):
    owner: str
    bugs: int


WORLD = World()


@function_tool
def owner_of(context: RunContextWrapper[str], path: str) -> str:
    """Return who owns a file."""
    WORLD.owners.append(path)
    return f"{context.context} owns {path}"


@function_tool
def file_issue(title: str) -> dict[str, int]:
    """File an issue."""
    WORLD.issues.append(title)
    WORLD.ledger.border("the effect of a call")
    return {"number": 7}


REPLIES = (
    Reply(tool_calls=(ToolCall("owner_of", {"path": "a.py"}), ToolCall("code__read_file", {"path": "a.py"}))),
    Reply(tool_calls=(ToolCall("transfer_to_filer", {}),)),
    Reply(tool_calls=(ToolCall("file_issue", {"title": "x is unused"}),)),
    Reply(text='{"owner": "blue", "bugs": 1}'),
)


def triage(model: Any) -> Agent[str]:
    filer = Agent[str]("filer", instructions="File it.", model=model, tools=[file_issue], output_type=Report)
    return Agent[str]("triage", instructions="Look.", model=model, tools=[owner_of], handoffs=[filer])


@pytest.fixture(params=[OpenAIChatCompletionsModel, OpenAIResponsesModel])
async def own(wires: Wires, request: pytest.FixtureRequest) -> AsyncIterator[OwnRun]:
    async with AsyncOpenAI(base_url=wires.environment["OPENAI_BASE_URL"], api_key="k", max_retries=0) as client:
        register_agent(NAME, triage(request.param("gpt-5", client)), deps=lambda *_: "blue", readonly=["owner_of"])
        WORLD.begin()
        yield OwnRun(wires, NAME, REPLIES, tools=(READ,))


@pytest.mark.spec("BYO-02.a")
async def test_an_agent_and_the_one_that_it_hands_off_to_run_as_they_are(own: OwnRun) -> None:
    ledger = Ledger()

    end = await own(ledger)

    assert (end.end_reason, end.outcome, end.output) == (
        EndReason.COMPLETED,
        Outcome.CLEAN,
        {"owner": "blue", "bugs": 1},
    )
    assert (WORLD.owners, WORLD.issues) == (["a.py"], ["x is unused"])
    own_tools = [f"{NAME}.{tool}" for tool in ("file_issue", "owner_of", "transfer_to_filer")]
    assert [tool for tool, _ in ledger.results] == ["code.read_file", *own_tools]
    assert [call.definition.name for call in own.gate.asked] == [f"{NAME}.file_issue"]
    assert end.usage.requests == len(own.wires.requests) == 4
    assert end.usage.cost_usd is not None


@pytest.mark.spec("BYO-02.a")
async def test_killed_at_any_border_it_goes_on_and_nothing_is_done_or_charged_twice(own: OwnRun) -> None:
    assert await killed_at_every_border(own, WORLD, 4) > 28


@pytest.mark.spec("BYO-02.a")
async def test_denials_and_a_busy_provider_are_those_of_any_run(own: OwnRun) -> None:
    await denied_with_a_busy_provider(own, WORLD)


@pytest.mark.spec("BYO-02")
@pytest.mark.parametrize(
    ("agent", "words"),
    [
        (Agent("a", tools=[LocalShellTool(executor=lambda _request: "")]), "acts outside of the run's gate"),
        (Agent("a", handoffs=[handoff(Agent("b"))]), r"list the agent itself in `handoffs`"),
        (Agent("a", mcp_servers=[object()]), "has MCP servers of its own"),  # type: ignore[list-item]
    ],
    ids=["a shell", "a handoff object", "an MCP server"],
)
def test_what_cannot_be_kept_is_refused_when_it_is_registered(agent: Agent[Any], words: str) -> None:
    with pytest.raises(InvalidConfigError, match=words):
        register_agent("tests.refused", agent)
