"""A compiled LangGraph graph as it is, on a wire server (BYO-02)."""

import asyncio
from collections.abc import AsyncIterator
from typing import Annotated, Any, TypedDict

import pytest
from httpx2 import AsyncClient
from langchain_core.messages import AnyMessage, HumanMessage
from langchain_core.tools import BaseTool, tool
from langchain_openai import ChatOpenAI
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, StateGraph
from langgraph.graph.message import add_messages
from langgraph.prebuilt import ToolNode, tools_condition
from langgraph.types import Command
from llmock.scenarios import Match, Reply, ToolCall

from soong.shared.agents.own.registration import register_agent
from soong.shared.core.errors import InvalidConfigError
from soong.shared.engine.runs.record import EndReason
from soong.shared.engine.tasks.step import Outcome
from tests.wires.own_run import (
    READ,
    KilledError,
    Ledger,
    OwnRun,
    World,
    denied_with_a_busy_provider,
    killed_at_every_border,
)
from tests.wires.wire import Wires

NAME = "tests.graph"


WORLD = World()


@tool
def owner_of(path: str) -> str:
    """Return who owns a file."""
    WORLD.owners.append(path)
    return f"core owns {path}"


@tool
async def file_issue(title: str) -> dict[str, int]:
    """File an issue."""
    WORLD.issues.append(title)
    WORLD.ledger.border("the effect of a call")
    return {"number": 7}


class State(TypedDict):
    messages: Annotated[list[AnyMessage], add_messages]


@pytest.fixture
async def client() -> AsyncIterator[AsyncClient]:
    """The connections of one test; LangChain's own belong to the event loop of another."""
    async with AsyncClient() as client:
        yield client


def graph_of(model: ChatOpenAI, tools: list[BaseTool], *, is_async: bool = True) -> Any:
    """Return a graph of the usual form; its nodes are coroutine functions, or plain ones on threads."""
    bound = model.bind_tools(tools)

    async def think(state: State) -> dict[str, Any]:
        return {"messages": [await bound.ainvoke(state["messages"])]}

    def think_on_a_thread(state: State) -> dict[str, Any]:
        return {"messages": [bound.invoke(state["messages"])]}

    graph = StateGraph(State)
    graph.add_node("think", think if is_async else think_on_a_thread)
    graph.add_node("tools", ToolNode(tools))
    graph.add_edge(START, "think")
    graph.add_conditional_edges("think", tools_condition)
    graph.add_edge("tools", "think")
    return graph.compile(checkpointer=InMemorySaver())


@pytest.fixture
def model(wires: Wires, client: AsyncClient) -> ChatOpenAI:
    return model_of("gpt-5", wires, client)


def model_of(name: str, wires: Wires, client: AsyncClient) -> ChatOpenAI:
    more: dict[str, Any] = {"api_key": "k", "http_async_client": client}
    return ChatOpenAI(model=name, base_url=wires.environment["OPENAI_BASE_URL"], max_retries=0, **more)


REPLIES = (
    Reply(tool_calls=(ToolCall("owner_of", {"path": "a.py"}), ToolCall("owner_of", {"path": "b.py"}))),
    Reply(tool_calls=(ToolCall("file_issue", {"title": "x is unused"}),)),
    Reply(text="one bug"),
)


@pytest.fixture(params=[True, False], ids=["coroutines", "threads"])
def own(wires: Wires, model: ChatOpenAI, request: pytest.FixtureRequest) -> OwnRun:
    register_agent(NAME, graph_of(model, [owner_of, file_issue], is_async=request.param), readonly=["owner_of"])
    WORLD.begin()
    return OwnRun(wires, NAME, REPLIES)


@pytest.mark.spec("BYO-02.b")
async def test_a_graph_runs_as_it_is(own: OwnRun) -> None:
    ledger = Ledger()

    end = await own(ledger)

    assert end.error is None, end.error
    assert (end.end_reason, end.outcome, end.output) == (EndReason.COMPLETED, Outcome.CLEAN, "one bug")
    assert (sorted(WORLD.owners), WORLD.issues) == (["a.py", "b.py"], ["x is unused"])
    assert [name for name, _ in ledger.results] == [f"{NAME}.file_issue", *[f"{NAME}.owner_of"] * 2]
    assert [call.definition.name for call in own.gate.asked] == [f"{NAME}.file_issue"]
    assert end.usage.requests == len(own.wires.requests) == 3
    assert end.usage.cost_usd is not None


@pytest.mark.spec("BYO-02.b")
async def test_killed_at_any_border_it_goes_on_and_nothing_is_done_or_charged_twice(own: OwnRun) -> None:
    assert await killed_at_every_border(own, WORLD, 3) > 24


@pytest.mark.spec("BYO-02.b")
async def test_denials_and_a_busy_provider_are_those_of_any_run(own: OwnRun) -> None:
    await denied_with_a_busy_provider(own, WORLD)


class Both(TypedDict):
    topic: str
    one: str
    two: str


@pytest.mark.spec("BYO-02.b")
async def test_branches_that_ask_at_the_same_time_get_their_own_answers_again(
    wires: Wires, client: AsyncClient
) -> None:
    models = {name: model_of(name, wires, client) for name in ("one", "two")}
    delays = {"one": 0.0, "two": 0.05}

    def branch(name: str) -> Any:
        async def ask(state: Both) -> dict[str, str]:
            await asyncio.sleep(delays[name])
            return {name: str((await models[name].ainvoke([HumanMessage(state["topic"])])).text)}

        return ask

    graph = StateGraph(Both)
    for name in models:
        graph.add_node(f"ask {name}", branch(name))
        graph.add_edge(START, f"ask {name}")
    register_agent("tests.both", graph.compile())
    replies = [Reply(text=f"of {name}", match=Match(model=name)) for name in models]
    own = OwnRun(wires, "tests.both", replies, overrides={"inputs": {"topic": "x"}})
    with pytest.raises(KilledError):
        await own(dying := Ledger(dies_at=8))
    assert dying.answers == 2
    delays.update({"one": 0.05, "two": 0.0})  # the other way round

    end = await own(dying.resumed())

    assert end.output == {"topic": "x", "one": "of one", "two": "of two"}
    assert own.wires.requests == []


@pytest.mark.spec("BYO-02")
async def test_what_a_graph_cannot_keep_is_said(wires: Wires, model: ChatOpenAI) -> None:
    @tool
    def steer() -> Command[Any]:
        """Steer the graph."""
        return Command(update={})

    register_agent("tests.steers", graph_of(model, [steer]))
    call = Reply(tool_calls=(ToolCall("steer", {}),))

    steered = await OwnRun(wires, "tests.steers", (call,))()
    offered = await OwnRun(wires, "tests.steers", (call,), tools=(READ,))()

    assert steered.error is not None
    assert "steer returns a Command, which a run cannot record" in steered.error.message
    assert offered.error is not None
    assert "leave `allowed_tools` out of the step" in offered.error.message
    with pytest.raises(InvalidConfigError, match="readonly can name: steer"):
        register_agent("tests.steers", graph_of(model, [steer]), readonly=["steers"])
