"""The agent of :mod:`folder` as a graph: a model node, LangGraph's own tool node, and its own edge between both.

``create_react_agent`` builds such a graph, and is deprecated.
"""

from collections.abc import Sequence
from typing import Any

from folder import lister, listings
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.tools import tool
from langgraph.checkpoint.postgres import PostgresSaver
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition


class ScriptModel(BaseChatModel):
    """Asks for the listings one after another, then answers with their number."""

    @property
    def _llm_type(self) -> str:
        return "script"

    def _generate(self, messages: list[BaseMessage], *_: Any, **__: Any) -> ChatResult:
        return ChatResult(generations=[ChatGeneration(message=_answer(messages))])


def _answer(messages: Sequence[BaseMessage]) -> AIMessage:
    done = sum(isinstance(message, ToolMessage) and message.status == "success" for message in messages)
    if done < int(str(messages[0].content)):
        return AIMessage("", tool_calls=[{"name": "list_dir", "args": {"path": "."}, "id": f"call_{done}"}])
    return AIMessage(str(done))


class Looker:
    """The agent. Inside the node of another graph, its checkpoints are those of the other's thread."""

    def __init__(self, folder: str, checkpointer: PostgresSaver) -> None:
        model = ScriptModel()
        graph = StateGraph(MessagesState)
        graph.add_node("model", lambda state: {"messages": [model.invoke(state["messages"])]})
        graph.add_node("tools", ToolNode([tool(lister(folder))]))
        graph.add_edge(START, "model")
        graph.add_conditional_edges("model", tools_condition)
        graph.add_edge("tools", "model")
        self._graph = graph.compile(checkpointer=checkpointer)

    def look(self, calls: int, **settings: Any) -> int:
        """Run the agent; ``settings`` are those of its thread where it has one of its own."""
        ended = self._graph.invoke({"messages": [HumanMessage(str(calls))]}, **settings)
        return listings(ended["messages"][-1].content, calls)
