"""Reads and writes of a foreign agent: ``code.read_file`` and ``code.write_file`` under the protocol's names."""

from collections.abc import Mapping
from typing import Final

from acp import RequestError

from soong.shared.agents.acp_agents import READ_FILE, WRITE_FILE
from soong.shared.tools.result import ErrorType, ToolResult
from soong.worker.acp.calls import AgentCalls

MAX_PAGES: Final = 200
PAGE_LINES: Final = 1000
_FAILED: Final = -32603


async def read_text(calls: AgentCalls, path: str, line: int | None, limit: int | None) -> str:
    """Return lines of a file, read page by page.

    Raises:
        RequestError: it cannot be read, or not as it is: an agent writes back what it was given.
    """
    start, left, texts = max(1, line or 1), limit, list[str]()
    for _ in range(MAX_PAGES):
        count = PAGE_LINES if left is None else min(PAGE_LINES, left)
        if count <= 0:
            return "".join(texts)
        result = await calls.make(READ_FILE, {"path": path, "start_line": start, "max_lines": count})
        page = _data(result, path)
        if page.get("truncated_lines"):
            raise RequestError(_FAILED, f"{path!r} has a line that is too long to be given unchanged")
        texts.append(str(page.get("text", "")))
        following, end = page.get("next_start_line"), page.get("end_line")
        if not isinstance(following, int) or not isinstance(end, int):
            return "".join(texts)
        left = None if left is None else left - (end - start + 1)
        start = following
    raise RequestError(_FAILED, f"{path!r} is too long to be read at once; ask with line and limit")


async def write_text(calls: AgentCalls, path: str, content: str) -> None:
    """Write a complete file. Raises: RequestError, when it is refused or fails."""
    _data(await calls.make(WRITE_FILE, {"path": path, "content": content, "overwrite": True}), path)


def failure_of(result: ToolResult) -> RequestError:
    """Return a failed call as the agent receives it."""
    assert result.error is not None
    if result.error.type is ErrorType.FILE_NOT_FOUND:
        return RequestError.resource_not_found(str(result.error.details.get("path") or result.error.message))
    hint = f" ({result.error.hint})" if result.error.hint else ""
    return RequestError(_FAILED, f"{result.error.message}{hint}", {"type": str(result.error.type)})


def _data(result: ToolResult, path: str) -> Mapping[str, object]:
    if result.error is not None:
        raise failure_of(result)
    if not isinstance(result.data, Mapping):
        raise RequestError(_FAILED, f"{path!r} is too large to be given at once; ask with line and limit")
    return result.data
