"""The agents of pull.yaml when no model is chosen."""

from typing import Any

from soong import AgentHandle, ToolCallError, scripted_agent


@scripted_agent("pull.lead")
async def lead(_inputs: dict[str, Any], agent: AgentHandle) -> dict[str, int]:
    """Take ready steps, one after another, until none is left."""
    done = 0
    while ready := (await agent.call("agent.task_query_steps"))["ready"]:
        try:
            taken = (await agent.call("agent.task_claim_step", step_id=ready[0]["id"]))["claimed"]
        except ToolCallError:  # another run was faster
            continue
        given = taken["inputs"]
        found = await agent.call("code.search", path=given["path"], query=given["word"])
        count = {"count": len(found["matches"])}
        await agent.call("agent.task_update_step", step_id=taken["id"], output=count)
        done += 1
    return {"done": done}


@scripted_agent("pull.tell")
async def tell(inputs: dict[str, Any], _agent: AgentHandle) -> dict[str, str]:
    return {"said": f"{inputs['todos']} TODO, {inputs['fixmes']} FIXME, {inputs['notes']} NOTE."}
