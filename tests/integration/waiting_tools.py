"""A reading tool that takes as long as a test says; loaded as users load theirs."""

import asyncio

from soong import Permission, Toolset

tools = Toolset()
opened: dict[str, asyncio.Event] = {}


@tools.tool("test.wait_for", permission=Permission.READONLY)
async def wait_for(name: str) -> str:
    """Return once the test has opened that name."""
    await opened.setdefault(name, asyncio.Event()).wait()
    return name
