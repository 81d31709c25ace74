"""Another attempt of an agent whose run was cut goes on from its record: no write is made again (BYO-01, DAG-07)."""

import asyncio
from typing import Annotated, Any, TypedDict

import pytest
from agents import Agent as SdkAgent
from agents import OpenAIChatCompletionsModel, Tool, function_tool
from httpx import AsyncClient
from langchain_core.messages import AnyMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from langgraph.graph import START, StateGraph
from langgraph.graph.message import add_messages
from langgraph.prebuilt import ToolNode, tools_condition
from llmock.scenarios import Behavior, Fail, Reply, ToolCall
from openai import AsyncOpenAI
from pydantic_ai import Agent
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

from soong import Choice, Json, JsonObject, PermissionDecision, PermissionRequest
from soong.orchestrator.client.catalog import Catalogue
from soong.orchestrator.replay.task import Replayer, read_task
from soong.shared.agents.model import REGISTERED
from soong.shared.agents.own.registration import register_agent
from soong.shared.engine.tasks.spec import TaskStatus
from soong.testing import LocalService, answer
from tests.wires.wire import Wires

PAID: list[int] = []
NOTED: list[Any] = []
ONCE = {"Connection": "close"}
"""No connection is left behind when the event loop of a test ends."""
CLIENTS: list[AsyncOpenAI] = []
"""They would close themselves on the loop of another test."""
PAY = Reply(tool_calls=(ToolCall("refund", {"number": 4711}),))
WRITE = Reply(tool_calls=(ToolCall("code__write_file", {"path": "a.txt", "content": "x"}),))


def refund(number: int) -> str:
    """Pay money back."""
    PAID.append(number)
    return "paid"


def note() -> str:
    """Note it, at the second attempt."""
    failures = [NOTED.pop() for one in tuple(NOTED) if isinstance(one, Exception)]
    if failures:
        raise failures[0]
    NOTED.append("noted")
    return "noted"


class _State(TypedDict):
    messages: Annotated[list[AnyMessage], add_messages]


def client_at(address: str) -> AsyncOpenAI:
    CLIENTS.append(AsyncOpenAI(base_url=address, api_key="k", max_retries=0, default_headers=ONCE))
    return CLIENTS[-1]


def of_soong(address: str) -> Any:
    return OpenAIChatModel("gpt-5", provider=OpenAIProvider(openai_client=client_at(address)))


def of_pydantic_ai(address: str) -> Any:
    return Agent(of_soong(address), tools=[refund, note])


def of_openai(address: str) -> Any:
    tools: list[Tool] = [function_tool(one, failure_error_function=None) for one in (refund, note)]
    return SdkAgent("a", model=OpenAIChatCompletionsModel("gpt-5", client_at(address)), tools=tools)


def of_langgraph(address: str) -> Any:
    tools = [tool(refund), tool(note)]
    more: dict[str, Any] = {"api_key": "k", "max_retries": 0, "default_headers": ONCE}
    model = ChatOpenAI(model="gpt-5", base_url=address, http_async_client=AsyncClient(), **more).bind_tools(tools)

    async def think(state: _State) -> dict[str, Any]:
        return {"messages": [await model.ainvoke(state["messages"])]}

    graph = StateGraph(_State)
    graph.add_node("think", think)
    graph.add_node("tools", ToolNode(tools))
    graph.add_edge(START, "think")
    graph.add_conditional_edges("think", tools_condition)
    graph.add_edge("tools", "think")
    return graph.compile()


OWN = {"pydantic_ai": of_pydantic_ai, "openai": of_openai, "langgraph": of_langgraph}
CUTS: dict[str, tuple[JsonObject, tuple[Behavior, ...], JsonObject]] = {
    "turns": ({"max_turns": 1}, (), {"max_turns": 9}),
    "tokens": ({"tokens": 1}, (), {"tokens": 10**6}),
    "cost": ({"cost_usd": 0.000001}, (), {"cost_usd": 1}),
    "request": ({"max_turns": 9}, (Fail(status=400),), {}),
}
"""By what cuts the second request: the limits of the plan, what the model answers, the limits of the resume."""


@pytest.mark.spec("BYO-01.c", "BYO-02.a", "BYO-02.b", "DAG-07")
@pytest.mark.parametrize("cut", CUTS)
@pytest.mark.parametrize("kind", ["soong", *OWN])
async def test_a_run_that_was_cut_after_a_write_is_continued_without_it(
    soong_service: LocalService, wires: Wires, monkeypatch: pytest.MonkeyPatch, kind: str, cut: str
) -> None:
    PAID.clear()
    limits, failures, raised = CUTS[cut]
    asked: list[str] = []

    async def person(request: PermissionRequest) -> PermissionDecision:
        asked.append(request.tool)
        wires.will(*failures)
        return PermissionDecision(Choice.ALLOW_ONCE)

    one: dict[str, Json] = {"id": "a", "instructions": "Pay it back."}
    address = wires.environment["OPENAI_BASE_URL"]
    if kind == "soong":
        monkeypatch.setitem(REGISTERED, "openai-chat:gpt-5", lambda _step: of_soong(address))
        one |= {"model": "openai-chat:gpt-5", "allowed_tools": ["code.write_file"]}
    else:
        register_agent("tests.clerk", OWN[kind](address))
        one |= {"agent": "python:tests.clerk"}
    wires.will(WRITE if kind == "soong" else PAY, Reply(text="done"))

    first = await soong_service.run({"title": "t", "limits": limits, "steps": [one]}, permission_callback=person)
    handle = soong_service.task(first.id)
    await handle.resume(limits=raised)
    last = await handle.wait()

    assert (first.status, last.status, last.outputs) == (TaskStatus.FAILED, TaskStatus.COMPLETED, {"a": "done"})
    assert (len(asked), PAID) == (1, [] if kind == "soong" else [4711])
    assert len(wires.requests) == 2 + len(failures)
    record = await read_task(soong_service._client.store, await soong_service._client.store.tasks.task(last.id))
    (run,) = [one for one in record.runs if one.run.attempt == 2]
    assert [str(node.kind) for node in run.nodes].count("system") == 1
    assert run.run.usage.requests == 1
    settings = soong_service._settings
    assert (await Replayer(settings, Catalogue.of(settings, starts_servers=False)).replay(record)).is_same
    assert ("a.txt" if kind == "soong" else "4711") in str(wires.requests[-1].body)


@pytest.mark.spec("BYO-01.c", "BYO-02.a", "BYO-02.b")
@pytest.mark.parametrize("others", [(), (12,)], ids=["alone", "after a write"])
@pytest.mark.parametrize("kind", OWN)
async def test_after_an_exception_of_a_tool_the_writes_before_it_are_not_made_again(
    soong_service: LocalService, wires: Wires, kind: str, others: tuple[int, ...]
) -> None:
    PAID.clear()
    NOTED[:] = [OSError("no network")]
    register_agent("tests.clerk", OWN[kind](wires.environment["OPENAI_BASE_URL"]))
    one: JsonObject = {"id": "a", "agent": "python:tests.clerk", "instructions": "x", "retries": 1, "backoff_s": 0.1}
    noting = Reply(tool_calls=(*(ToolCall("refund", {"number": each}) for each in others), ToolCall("note", {})))
    # The answer is asked for again where nothing came of it.
    wires.will(PAY, noting, *([] if others else [noting]), Reply(text="done"))

    result = await soong_service.run(
        {"title": "t", "steps": [one]}, permission_callback=answer("tests.*", "allow_session")
    )

    assert (result.outputs, result.steps[0].attempt) == ({"a": "done"}, 2)
    assert ([4711, *others], ["noted"]) == (PAID, NOTED)


@pytest.mark.spec("BYO-01.c", "EXE-07")
async def test_a_write_that_a_time_limit_cut_off_is_not_made_again(soong_service: LocalService, wires: Wires) -> None:
    paid: list[int] = []

    async def pay(number: int) -> None:
        paid.append(number)
        await asyncio.Event().wait()

    register_agent("tests.slow", Agent(of_soong(wires.environment["OPENAI_BASE_URL"]), tools=[pay]))
    one: dict[str, Json] = {"id": "a", "agent": "python:tests.slow", "instructions": "x", "timeout_s": 1}
    wires.will(Reply(tool_calls=(ToolCall("pay", {"number": 7}),)), Reply(text="done"))

    result = await soong_service.run(
        {"title": "t", "steps": [{**one, "retries": 1, "backoff_s": 0.1}]}, allow=["tests.slow.*:exact:tests.slow"]
    )

    assert (result.outputs, paid) == ({"a": "done"}, [7])
    assert "aborted: the run was interrupted" in str(wires.requests[-1].body)
