"""The agents of hello.yaml when no model is chosen."""

from typing import Any

from soong import AgentHandle, scripted_agent


@scripted_agent("hello.look")
async def look(_inputs: dict[str, Any], agent: AgentHandle) -> dict[str, int]:
    listed = await agent.call("code.list_dir")
    return {"entries": len(listed["entries"])}


@scripted_agent("hello.greet")
async def greet(inputs: dict[str, Any], _agent: AgentHandle) -> dict[str, str]:
    return {"greeting": f"Hello {inputs['name']}, your folder has {inputs['entries']} entries."}
