"""Results for two readers: a short text for a model, and the same facts by the tool's output schema for programs.

Clients cut long results, so both are bounded: texts come in pages, lists in cursors. Texts of agents, files and plans
are data; their control characters are spelled out.
"""

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

from mcp.server.mcpserver.exceptions import ToolError
from mcp_types import CallToolResult, TextContent
from pydantic import BaseModel

from soong.shared.core.inert import inert

MAX_TEXT_CHARS: Final = 24_000
PREVIEW_CHARS: Final = 300
_SEGMENT: Final = re.compile(r"[0-9A-Za-z_]{1,200}")


def told(text: str, shape: BaseModel) -> CallToolResult:
    """Return a tool's result in both forms."""
    shown = cut(inert(text, keeps_blanks=True), MAX_TEXT_CHARS)
    return CallToolResult(
        content=[TextContent(type="text", text=shown)], structured_content=shape.model_dump(mode="json")
    )


def cut(text: str, most: int) -> str:
    """Return a text, or its beginning with a mark."""
    return text if len(text) <= most else f"{text[:most]}… (cut: {len(text):,} characters)"


def preview(value: object, most: int = PREVIEW_CHARS) -> str:
    """Return the beginning of a value as one line of JSON; of a text as it is."""
    return cut(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str), most)


def lines(*parts: str | Iterable[str]) -> str:
    """Join lines; those that are empty are left out."""
    flat: list[str] = []
    for part in parts:
        flat += [part] if isinstance(part, str) else part
    return "\n".join(line for line in flat if line)


def counts_of(step_counts: Mapping[str, int]) -> str:
    """Return ``3 of 7 steps completed, 2 running``."""
    total, done = sum(step_counts.values()), step_counts.get("completed", 0)
    others = [f"{number} {status}" for status, number in step_counts.items() if status != "completed" and number]
    return ", ".join([f"{done} of {total} steps completed", *others])


def path(*segments: str) -> str:
    """Return the path of an API request. Raises: ToolError when an id is none."""
    for segment in segments:
        if not _SEGMENT.fullmatch(segment):
            raise ToolError(f"{segment[:100]!r} is not an id; copy the id as another tool returned it")
    return "/v1/" + "/".join(segments)


def without_empty(body: Mapping[str, Any]) -> dict[str, Any]:
    """Return a request's body without the fields that say nothing."""
    return {name: value for name, value in body.items() if value not in ("", None, [], {})}
