"""The agent of :mod:`folder` with Pydantic AI and its capability for DBOS.

Each request to the model is a DBOS step. Pydantic AI leaves tools to the user, so the tool is made a step here.
"""

from collections.abc import Awaitable, Callable

from dbos import DBOS
from folder import lister, listings
from pydantic_agent import agent_of
from pydantic_ai.durable_exec.dbos import DBOSDurability


def look_of(folder: str) -> Callable[[int], Awaitable[int]]:
    """Return what runs the agent inside a workflow: a function of the number of calls."""
    agent = agent_of(lister(folder), DBOS.step(name="list_dir"), name="looker", capabilities=[DBOSDurability()])

    async def look(calls: int) -> int:
        return listings((await agent.run(str(calls))).output, calls)

    return look
