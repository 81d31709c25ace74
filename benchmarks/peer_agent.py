"""What a Celery task does whose step is an agent: the same agent, in memory, with Pydantic AI. Nothing is stored.

A worker process has one agent and one event loop.
"""

import asyncio
from collections.abc import Callable

from benchmarks.durable.folder import lister, listings
from benchmarks.durable.pydantic_agent import agent_of


def look_of(folder: str) -> Callable[[int], None]:
    """Return what runs the agent: a function of the number of its calls."""
    agent, loop = agent_of(lister(folder)), asyncio.new_event_loop()

    def look(calls: int) -> None:
        listings(loop.run_until_complete(agent.run(str(calls))).output, calls)

    return look
