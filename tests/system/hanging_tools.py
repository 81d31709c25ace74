"""Tools of the tests' own, imported by workers through SOONG_TOOLS, and a scripted agent that calls them."""

import asyncio
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

from soong import AgentHandle, Permission, ToolCallError, Toolset, scripted_agent
from tests.waiting import until as later
from tests.waiting import wait_until

HANGS_S = 600.0
tools = Toolset()


@tools.tool("test.hang", permission=Permission.READONLY, timeout=timedelta(seconds=1))
def hang(until: str) -> str:
    """Block the thread until a file is there."""
    wait_until(Path(until).exists, HANGS_S)
    return "ended"


@tools.tool("test.hang_deaf", permission=Permission.READONLY)
async def hang_deaf(ledger: str, until: str) -> str:
    """Wait until a file is there; ignore every cancellation."""
    Path(ledger).write_text("begin agent\n")  # noqa: ASYNC240  # a file of a test
    while not Path(until).exists():  # noqa: ASYNC240  # a look of microseconds
        with suppress(asyncio.CancelledError):
            await later(Path(until).exists, HANGS_S)
    return "ended"


@tools.tool("test.hang_deaf_limited", permission=Permission.READONLY, timeout=timedelta(seconds=1))
async def hang_deaf_limited(ledger: str, until: str) -> str:
    """Wait as the one above does, beyond a time limit."""
    return await hang_deaf(ledger, until)


@scripted_agent("tests.hang_in_deaf_tool")
async def hang_in_deaf_tool(inputs: dict[str, Any], agent: AgentHandle) -> Any:
    return await agent.call("test.hang_deaf", ledger=inputs["ledger"], until=inputs["until"])


@scripted_agent("tests.hang_in_limited_deaf_tool")
async def hang_in_limited_deaf_tool(inputs: dict[str, Any], agent: AgentHandle) -> Any:
    """Call a coroutine that takes no notice of its time limit, and say what came of it."""
    try:
        return await agent.call("test.hang_deaf_limited", ledger=inputs["ledger"], until=inputs["until"])
    except ToolCallError as error:
        return {"type": error.type}


@scripted_agent("tests.hang_in_tool")
async def hang_in_tool(inputs: dict[str, Any], agent: AgentHandle) -> Any:
    """Call a tool that takes no notice of its time limit, and say what came of it."""
    try:
        return await agent.call("test.hang", until=inputs["until"])
    except ToolCallError as error:
        return {"type": error.type}


@scripted_agent("tests.hang_itself")
async def hang_itself(inputs: dict[str, Any], _agent: AgentHandle) -> Any:
    """Block the thread of the agent itself."""
    Path(inputs["ledger"]).write_text("begin agent\n")  # noqa: ASYNC240  # a file of a test
    wait_until(Path(inputs["until"]).exists, HANGS_S)
    with suppress(OSError):
        Path(inputs["ledger"]).write_text("end agent\n")  # noqa: ASYNC240  # likewise
    return {}
