"""The work of the steps of plan.yaml: scripted agents, for when no model is chosen, and a step function."""

import json
from typing import Any

from soong import AgentHandle, JsonObject, scripted_agent, step


@scripted_agent("steps.find")
async def find(inputs: JsonObject, agent: AgentHandle) -> JsonObject:
    found = await agent.call("code.search", query=".", glob=inputs["glob"])
    return {"files": sorted({match["path"] for match in found["matches"]})[:20]}


@scripted_agent("steps.read")
async def read(inputs: JsonObject, agent: AgentHandle) -> JsonObject:
    text = await agent.call("code.read_file", path=inputs["file"])
    return {"file": inputs["file"], "words": len(text["text"].split())}


@scripted_agent("steps.write")
async def write(inputs: JsonObject, agent: AgentHandle) -> JsonObject:
    await agent.call("code.write_file", path="words.json", content=json.dumps(inputs["result"]) + "\n")
    return inputs


# Relative paths of a function start in a folder of its own, StepContext.current().folder. Its prints are kept with the
# run: soong runs logs TASK/total.
@step
def total(counted: list[dict[str, Any]]) -> dict[str, int]:
    return {"files": len(counted), "words": sum(each["words"] for each in counted)}
