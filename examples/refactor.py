"""The agents of refactor.yaml when no model is chosen."""

import asyncio
import re
from difflib import unified_diff
from pathlib import PurePosixPath
from typing import Any

from soong import AgentHandle, ToolCallError, scripted_agent


@scripted_agent("refactor.find")
async def find(inputs: dict[str, Any], agent: AgentHandle) -> dict[str, Any]:
    """Search once; each folder with a match is a package."""
    found = await agent.call("code.search", query=full_word(inputs["old"]), glob="*.py", limit=1000)
    folders: dict[str, set[str]] = {}
    for match in found["matches"]:
        folders.setdefault(str(PurePosixPath(match["path"]).parent), set()).add(match["path"])
    packages = [{"path": folder, "files": sorted(files)} for folder, files in sorted(folders.items())]
    return {"packages": packages, "cut": found["truncated"]}


@scripted_agent("refactor.rename")
async def rename(inputs: dict[str, Any], agent: AgentHandle) -> dict[str, Any]:
    """Ask for all files of the folder at once, so that they can be answered together."""
    results = await asyncio.gather(*(renamed(agent, path, inputs) for path in inputs["files"]))
    of_file = list(zip(inputs["files"], results, strict=True))
    return {
        "changed": [{"path": path, "lines": result} for path, result in of_file if isinstance(result, int)],
        "kept": [{"path": path, "error": result} for path, result in of_file if isinstance(result, str)],
    }


async def renamed(agent: AgentHandle, path: str, inputs: dict[str, Any]) -> int | str:
    """Change one file by one diff; return how many lines that were, or why none was."""
    file = f"{agent.project}/{path}"
    try:
        old = (await text_of(agent, file)).splitlines(keepends=True)
        new = [re.sub(full_word(inputs["old"]), lambda _: inputs["new"], line) for line in old]
        await agent.call("code.edit_file", path=file, unified_diff=diff_of(old, new, file))
    except ToolCallError as error:
        return error.type
    return sum(before != after for before, after in zip(old, new, strict=True))


def diff_of(old: list[str], new: list[str], file: str) -> str:
    lines = unified_diff(old, new, file, file)
    return "".join(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines)


async def text_of(agent: AgentHandle, file: str) -> str:
    text, line = "", 1
    while line:
        page = await agent.call("code.read_file", path=file, start_line=line, max_lines=1000)
        text, line = text + page["text"], page.get("next_start_line") or 0
    return text


def full_word(name: str) -> str:
    return rf"\b{re.escape(name)}\b"


@scripted_agent("refactor.tell")
async def tell(inputs: dict[str, Any], _agent: AgentHandle) -> dict[str, Any]:
    done = [one for one in inputs["results"] if one]  # a folder whose worker failed has none
    changed = [file["lines"] for one in done for file in one["changed"]]
    kept = [f"{file['path']}: {file['error']}" for one in done for file in one["kept"]]
    said = f"{sum(changed)} lines of {len(changed)} files were changed, {len(kept)} files were kept."
    return {"said": said + (" There are more matches: run it again." if inputs["cut"] else ""), "kept": kept}
