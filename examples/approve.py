"""The agents of approve.yaml when no model is chosen."""

from typing import Any

from soong import AgentHandle, ToolCallError, scripted_agent


@scripted_agent("approve.write")
async def write(inputs: dict[str, Any], agent: AgentHandle) -> dict[str, Any]:
    path = f"{inputs['folder']}/{inputs['name']}.txt"
    content = f"written by the worker {inputs['name']}\n"
    try:
        await agent.call("code.write_file", path=path, content=content, overwrite=True)
    except ToolCallError as error:
        return {"path": path, "written": False, "error": error.type}
    return {"path": path, "written": True, "error": ""}
