"""The function of mixed.yaml, its scripted agent, and what the last step runs when no model is chosen."""

from collections import Counter
from pathlib import PurePosixPath
from typing import Any

from soong import AgentHandle, scripted_agent, step


@scripted_agent("mixed.look")
async def look(_inputs: dict[str, Any], agent: AgentHandle) -> dict[str, Any]:
    found = await agent.call("code.list_dir", path=agent.project, recursive=True, limit=1000)
    files = [{"path": one["path"], "bytes": one["size"] or 0} for one in found["entries"] if one["type"] == "file"]
    return {"files": files, "cut": found["truncated"]}


@step
def tally(files: list[dict[str, Any]]) -> dict[str, Any]:
    kinds = Counter(PurePosixPath(one["path"]).suffix or "without a suffix" for one in files)
    return {"kinds": dict(kinds.most_common()), "bytes": sum(one["bytes"] for one in files)}


@scripted_agent("mixed.tell")
async def tell(inputs: dict[str, Any], _agent: AgentHandle) -> dict[str, str]:
    kinds, more = inputs["kinds"], "at least " if inputs["cut"] else ""
    most = ", ".join(f"{number} {kind}" for kind, number in list(kinds.items())[:3]) or "nothing"
    return {"said": f"The folder holds {more}{sum(kinds.values())} files ({most}). They have {inputs['bytes']} bytes."}
