"""The agents of research.yaml when no model is chosen: they go by the words of the question."""

import re
from typing import Any

from soong import AgentHandle, scripted_agent

MOST_NOTES = 3
SHORTEST_WORD = 4


@scripted_agent("research.choose")
async def choose(inputs: dict[str, Any], agent: AgentHandle) -> dict[str, list[str]]:
    if inputs["pages"]:
        return {"pages": list(dict.fromkeys(inputs["pages"]))}
    found = await agent.call("code.list_dir", path=agent.project, limit=1000)
    return {"pages": [one["path"] for one in found["entries"] if one["type"] == "file" and one["path"].endswith(".md")]}


@scripted_agent("research.note")
async def note(inputs: dict[str, Any], agent: AgentHandle) -> dict[str, Any]:
    """Note the lines that share most words with the question; a page that cannot be read fails the step."""
    asked = words_of(inputs["question"])
    found: list[tuple[int, int, str]] = []
    start = 1
    while start:
        page = await agent.call(
            "code.read_file", path=f"{agent.project}/{inputs['page']}", start_line=start, max_lines=1000
        )
        for number, line in enumerate(page["text"].splitlines(), start):
            found.append((-len(asked & words_of(line)), number, line.strip()))
        start = page.get("next_start_line") or 0
    best = sorted(found)[:MOST_NOTES]
    notes = [{"line": number, "text": text} for shared, number, text in best if shared]
    return {"page": inputs["page"], "notes": notes}


def words_of(text: str) -> set[str]:
    """Return the words of a text, by their beginnings: `installed` and `installing` are one."""
    return {word[:6] for word in re.findall(r"\w+", text.lower()) if len(word) >= SHORTEST_WORD}


@scripted_agent("research.report")
async def report(inputs: dict[str, Any], _agent: AgentHandle) -> str:
    pages = list(zip(inputs["pages"], inputs["notes"], strict=True))
    lines = [
        f"- {one['text']} [{page}:{one['line']}]" for page, noted in pages for one in (noted or {}).get("notes", ())
    ]
    lines = lines or ["Nothing about it was found in the pages." if pages else "There are no pages to read."]
    unread = [f"- {page} could not be read." for page, noted in pages if noted is None]
    return "\n".join([f"# {inputs['question']}", "", *lines, *unread])
