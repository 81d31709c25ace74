"""LangGraph: a graph whose nodes run in its own process, with its checkpoints in PostgreSQL.

``python langgraph_peer.py URL``: its steps are functions. ``python langgraph_peer.py URL FOLDER``: they are agents that
look into the folder. Checkpoints are written before the next step begins (``durability="sync"``).
"""

import operator
import sys
import uuid
from collections.abc import Callable
from functools import cache
from typing import Annotated, Any, TypeAlias, TypedDict

from langgraph.checkpoint.postgres import PostgresSaver
from langgraph.graph import END, START, StateGraph
from langgraph.types import Send
from protocol import Asked, serve

Step: TypeAlias = Callable[[], int]


class State(TypedDict):
    values: Annotated[list[int], operator.add]
    left: int


def fan_of(step: Step, checkpointer: PostgresSaver) -> Any:
    graph = StateGraph(State)
    for name in ("root", "leaf", "join"):
        graph.add_node(name, lambda _state: {"values": [step()]})
    graph.add_edge(START, "root")
    graph.add_conditional_edges("root", lambda state: [Send("leaf", {"values": []}) for _ in range(state["left"])])
    graph.add_edge("leaf", "join")
    graph.add_edge("join", END)
    return graph.compile(checkpointer=checkpointer)


def chain_of(step: Step, checkpointer: PostgresSaver) -> Any:
    graph = StateGraph(State)
    graph.add_node("hop", lambda state: {"values": [step()], "left": state["left"] - 1})
    graph.add_edge(START, "hop")
    graph.add_conditional_edges("hop", lambda state: "hop" if state["left"] > 0 else END)
    return graph.compile(checkpointer=checkpointer)


def runner_of(look: Callable[[int], int], checkpointer: PostgresSaver) -> Callable[[Asked], int]:
    """Return what runs a task whose steps are ``look``, each a step of a graph around them."""

    @cache
    def graph_of(is_fan: bool, value: int) -> Any:
        return (fan_of if is_fan else chain_of)(lambda: look(value), checkpointer)

    def run(asked: Asked) -> int:
        ended = graph_of(asked.is_fan, asked.value).invoke({"values": [], "left": asked.size}, **settings_of(asked))
        return sum(ended["values"])

    return run


def settings_of(asked: Asked) -> dict[str, Any]:
    """Return the settings of a task's thread."""
    limit = asked.size + 10
    return {"config": {"configurable": {"thread_id": uuid.uuid4().hex}, "recursion_limit": limit}, "durability": "sync"}


def agents_of(folder: str, checkpointer: PostgresSaver) -> Callable[[Asked], int]:
    """Return what runs a task of agents; a task of one agent is the agent's own graph."""
    from langgraph_agent import Looker

    look = Looker(folder, checkpointer).look
    run = runner_of(look, checkpointer)
    return lambda asked: look(asked.calls, **settings_of(asked)) if asked.is_single else run(asked)


def main(url: str, folder: str = "") -> None:
    with PostgresSaver.from_conn_string(url) as checkpointer:
        checkpointer.setup()
        serve(agents_of(folder, checkpointer) if folder else runner_of(lambda value: value, checkpointer))


if __name__ == "__main__":
    main(*sys.argv[1:])
