"""A compiled LangGraph graph as a step: a model that calls tools until it has an answer."""

from typing import Any

from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition

from soong import step


@tool
def owner_of(path: str) -> str:
    """Return who owns a file."""
    return f"core owns {path}"


model = ChatOpenAI(model="gpt-5").bind_tools([owner_of])


def think(state: MessagesState) -> dict[str, Any]:
    return {"messages": [model.invoke(state["messages"])]}


graph = StateGraph(MessagesState)
graph.add_node("think", think)
graph.add_node("tools", ToolNode([owner_of]))
graph.add_edge(START, "think")
graph.add_conditional_edges("think", tools_condition)
graph.add_edge("tools", "think")

review = step(graph.compile(), name="team.graph", readonly=["owner_of"])
