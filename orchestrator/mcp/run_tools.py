"""Tools that read runs: which there are, their log and transcript by pages, and artifacts."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final, Literal

from mcp.server.mcpserver.exceptions import ToolError
from mcp_types import CallToolResult
from pydantic import Field

from soong.orchestrator.mcp.api import ApiCalls, SoongContext, api_of
from soong.orchestrator.mcp.shapes import RunEntry, RunLine, RunList, RunPage
from soong.orchestrator.mcp.texts import MAX_TEXT_CHARS, cut, lines, path, preview, told
from soong.orchestrator.schemas.artifact import ArtifactPage
from soong.shared.core.jsontext import Json

MAX_FIELD_CHARS: Final = 2_000
MAX_DEPTH: Final = 6
MAX_ENTRIES: Final = 50
MAX_PAGE_CHARS: Final = MAX_TEXT_CHARS * 3 // 4

RunId = Annotated[str, Field(max_length=80, description="The run's id, `run_…`.")]


async def list_runs(
    ctx: SoongContext,
    task: Annotated[str, Field(max_length=80, description="Only of this task.")] = "",
    session: Annotated[str, Field(max_length=80, description="Only of this session.")] = "",
    limit: Annotated[int, Field(ge=1, le=100, description="At most so many.")] = 20,
    cursor: Annotated[str, Field(max_length=80, description="`next` of the page before.")] = "",
) -> Annotated[CallToolResult, RunList]:
    """List the runs of Soong agents, newest first: who ran which step, with which model, and how it ended."""
    query: dict[str, str | int] = {"task": task, "session": session, "limit": limit, "cursor": cursor}
    document = (await (await api_of(ctx)).call("GET", "/v1/runs", query=query)).document
    items = [RunLine.model_validate({name: one[name] for name in RunLine.model_fields}) for one in document["items"]]
    shape = RunList(items=items, next=document["next"])
    each = [
        f"{one.id} {one.status} {one.definition} ({one.model or 'no model'}) task {one.task} step {one.step or '-'}, "
        f"attempt {one.attempt}, {one.events} events"
        for one in items
    ]
    return told(lines(each or "there are no runs", f"next page: cursor={shape.next}" if shape.next else ""), shape)


async def read_run(
    ctx: SoongContext,
    run: RunId,
    view: Annotated[
        Literal["transcript", "events"],
        Field(description="transcript: what the model read and wrote. events: every tool call, decision and change."),
    ] = "transcript",
    after: Annotated[int, Field(ge=0, le=2**53, description="Begin after the entry of this number.")] = 0,
    limit: Annotated[int, Field(ge=1, le=MAX_ENTRIES, description="At most so many entries.")] = 20,
) -> Annotated[CallToolResult, RunPage]:
    """Read a Soong run page by page: the transcript of its model, or its log of tool calls, permissions and changes."""
    api = await api_of(ctx)
    status = (await api.call("GET", path("runs", run))).document["status"]
    entries, has_more = _within(await _entries(api, run, view, after, limit), limit)
    shape = RunPage(
        run=run, status=status, entries=entries, next_after=entries[-1].number if entries and has_more else None
    )
    text = lines(
        f"run {run}: {status}",
        [f"{one.number} {one.time} {one.type} {preview(one.data, MAX_FIELD_CHARS)}" for one in entries]
        or f"there is nothing after number {after}",
        f"next page: after={shape.next_after}" if shape.next_after is not None else "",
    )
    return told(text, shape)


async def _entries(api: ApiCalls, run: str, view: str, after: int, limit: int) -> list[RunEntry]:
    what = "nodes" if view == "transcript" else "events"
    query = {"after": after, "limit": limit + 1}
    items = (await api.call("GET", path("runs", run, what), query=query)).document["items"]
    if what == "nodes":
        return [_entry(one["number"], one["kind"], one["created"], one["payload"]) for one in items]
    return [_entry(int(one["id"]), one["type"].removeprefix("soong."), one["time"], one["data"]) for one in items]


def _entry(number: int, kind: str, time: str, data: Json) -> RunEntry:
    return RunEntry(number=number, type=kind, time=time, data=shortened(data))


def _within(found: Sequence[RunEntry], limit: int) -> tuple[list[RunEntry], bool]:
    """Return the entries of one page, within its size, and whether there are more; at least one."""
    kept: list[RunEntry] = []
    used = 0
    for entry in found[:limit]:
        used += len(preview(entry.data, MAX_PAGE_CHARS))
        if kept and used > MAX_PAGE_CHARS:
            break
        kept.append(entry)
    return kept, len(kept) < len(found)


def shortened(value: Json, depth: int = 0) -> Any:
    """Return a value whose texts are cut; what lies too deep is left out, with a mark."""
    if isinstance(value, str):
        return cut(value, MAX_FIELD_CHARS)
    if not isinstance(value, Mapping | list | tuple):
        return value
    if depth >= MAX_DEPTH:
        return "… (left out: nested too deep)"
    if isinstance(value, Mapping):
        return {name: shortened(item, depth + 1) for name, item in list(value.items())[:MAX_ENTRIES]}
    return [shortened(item, depth + 1) for item in value[:MAX_ENTRIES]]


async def read_artifact(
    ctx: SoongContext,
    digest: Annotated[
        str, Field(pattern="^[0-9a-f]{64}$", description="SHA-256 of it, as results and events name it.")
    ],
    offset: Annotated[int, Field(ge=0, le=2**53, description="Begin at this byte.")] = 0,
    limit: Annotated[int, Field(ge=1, le=20_000, description="At most so many bytes.")] = 20_000,
) -> Annotated[CallToolResult, ArtifactPage]:
    """Read an artifact of a Soong run by its digest, page by page: long tool output, or the copy of a written file."""
    query = {"offset": offset, "limit": limit}
    document = (await (await api_of(ctx)).call("GET", path("artifacts", digest), query=query)).document
    shape = ArtifactPage.model_validate(document)
    more = f"more: offset={shape.next_offset} of {shape.size_bytes} bytes" if shape.next_offset is not None else ""
    if shape.text is None and not shape.base64:
        raise ToolError(f"the artifact has {shape.size_bytes} bytes; there is nothing from {offset} on")
    text = shape.text if shape.text is not None else f"(not text; base64) {shape.base64}"
    return told(lines(text, more), shape)
