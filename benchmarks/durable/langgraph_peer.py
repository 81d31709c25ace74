"""LangGraph: a graph whose nodes are functions of its own process, with its checkpoints in PostgreSQL.

``python langgraph_peer.py URL``. Checkpoints are written before the next step begins (``durability="sync"``).
"""

import operator
import sys
import uuid
from typing import Annotated, Any, TypedDict

from langgraph.checkpoint.postgres import PostgresSaver
from langgraph.graph import END, START, StateGraph
from langgraph.types import Send
from protocol import serve


class State(TypedDict):
    values: Annotated[list[int], operator.add]
    left: int


def echo(_state: State) -> dict[str, Any]:
    return {"values": [1]}


def hop(state: State) -> dict[str, Any]:
    return {"values": [1], "left": state["left"] - 1}


def fan_of(checkpointer: PostgresSaver) -> Any:
    graph = StateGraph(State)
    graph.add_node("root", echo)
    graph.add_node("leaf", echo)
    graph.add_node("join", echo)
    graph.add_edge(START, "root")
    graph.add_conditional_edges("root", lambda state: [Send("leaf", {"values": []}) for _ in range(state["left"])])
    graph.add_edge("leaf", "join")
    graph.add_edge("join", END)
    return graph.compile(checkpointer=checkpointer)


def chain_of(checkpointer: PostgresSaver) -> Any:
    graph = StateGraph(State)
    graph.add_node("hop", hop)
    graph.add_edge(START, "hop")
    graph.add_conditional_edges("hop", lambda state: "hop" if state["left"] > 0 else END)
    return graph.compile(checkpointer=checkpointer)


def main(url: str) -> None:
    with PostgresSaver.from_conn_string(url) as checkpointer:
        checkpointer.setup()
        fan, chain = fan_of(checkpointer), chain_of(checkpointer)

        def run(shape: str, size: int) -> None:
            graph, left = (fan, size) if shape == "W1" else (chain, 1 if shape == "W5" else size)
            settings = {"configurable": {"thread_id": uuid.uuid4().hex}, "recursion_limit": size + 10}
            ended = graph.invoke({"values": [], "left": left}, settings, durability="sync")
            assert len(ended["values"]) == (size + 2 if shape == "W1" else left)

        serve(run)


if __name__ == "__main__":
    main(*sys.argv[1:])
